"""`codex-linux-sandbox` as anyone starts it, without a server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox import landlock
from execserver.sandbox.syscalls import Kernel
from tests.e2e.sandbox_places import ORDINARY
from tests.support.opened import open_python, open_source
from tests.support.sandboxes import deny_glob, managed, rule, special
from tests.support.waiting import wait_until

LINK_NAME = "codex-linux-sandbox"
READ_ONLY = managed(special("root", "read"))
WORKSPACE = managed(
    special("root", "read"),
    special("project_roots", "write"),
    *(special("project_roots", "read", name) for name in (".git", ".agents", ".codex")),
)
PATH = "/usr/bin:/bin"
CLEANED_WITHIN_S = 2.0


class Box:
    """A workspace, and the command started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ws = folder / "ws"
        self.ws.mkdir()
        (folder / "run").mkdir(0o700)
        self.env = {"PATH": PATH, "XDG_RUNTIME_DIR": str(folder / "run")}

    def words(self, *words: str, profile: object = READ_ONLY) -> list[str]:
        options = ["--sandbox-policy-cwd", str(self.ws), "--permission-profile", json.dumps(profile)]
        main = str(open_source() / "execserver" / "__main__.py")
        return [sys.executable, "-I", main, LINK_NAME, *options, *words]

    def start(self, *words: str, profile: object = READ_ONLY, **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.words(*words, profile=profile),
            cwd=self.ws,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, profile: object = READ_ONLY, **env: str) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr."""
        with self.start(*words, profile=profile, **env) as process:
            stdout, stderr = process.communicate(timeout=30)
        return process.returncode, stdout.decode(), stderr.decode()

    def shell(
        self, script: str, *options: str, profile: object = READ_ONLY, **env: str
    ) -> tuple[int, str, str]:
        return self.run(*options, "--", "sh", "-c", script, profile=profile, **env)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.ws))


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


# --- what the command may do -------------------------------------------------------------------------------


def test_it_reads_everything_and_writes_nothing(box: Box) -> None:
    status, stdout, stderr = box.shell("ls /bin/sh; pwd; echo x > f")
    assert (status, stdout) == (2, f"/bin/sh\n{box.ws}\n")
    assert "Read-only file system" in stderr
    assert box.names() == []


def test_the_workspace_is_written_but_its_metadata_is_not(box: Box) -> None:
    status, stdout, _ = box.shell("echo x > f; mkdir .git/x .codex/x; ls -A; git init", profile=WORKSPACE)
    assert (status != 0, stdout.split()) == (True, [".agents", ".codex", ".git", "f"])
    assert box.names() == ["f"]


def test_denied_paths_and_patterns_are_hidden(box: Box) -> None:
    (box.ws / "key.pem").write_text("hidden")
    (box.folder / "private").write_text("hidden")
    profile = managed(
        special("root", "read"), rule(box.folder / "private", "deny"), deny_glob(f"{box.ws}/**/*.pem")
    )
    status, stdout, _ = box.shell("cat key.pem ../private", profile=profile)
    assert (status, stdout) == (1, "")


def test_native_paths_are_understood(box: Box) -> None:
    entry = {"path": {"type": "path", "path": str(box.ws)}, "access": "write"}
    assert box.shell("echo x > f", profile=managed(special("root", "read"), entry))[0] == 0
    assert box.names() == ["f"]


def test_privileges_and_processes(box: Box) -> None:
    _, stdout, _ = box.shell(
        "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; ls /proc | grep -c '^[0-9]'"
    )
    *held, processes = stdout.split()
    assert held == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]
    assert int(processes) <= 5


def test_the_environment_is_kept_and_nothing_of_it_is_run_before(box: Box) -> None:
    fake = box.folder / "fake"
    fake.mkdir()
    for name in ("bwrap", "rg", "sh", "true"):
        (fake / name).write_text(f"#!/bin/sh\ntouch {box.folder}/ran\n")
        (fake / name).chmod(0o755)
    (box.ws / "json.py").write_text(f"open({str(box.folder / 'ran')!r}, 'w')")
    env = {
        "PATH": f"{fake}:{PATH}",
        "PYTHONPATH": str(box.ws),
        "PYTHONSTARTUP": str(box.ws / "json.py"),
        "A": "=",
    }
    status, stdout, _ = box.run("--", "/usr/bin/env", profile=WORKSPACE, **env)
    assert status == 0
    assert dict(line.split("=", 1) for line in stdout.splitlines()) == {**box.env, **env}
    assert not (box.folder / "ran").exists()


# --- ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", [READ_ONLY, WORKSPACE])
@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_the_exit_status_is_the_commands(box: Box, profile: object, script: str, status: int) -> None:
    assert box.shell(script, profile=profile)[0] == status


def test_without_restrictions_it_becomes_the_command(box: Box) -> None:
    assert box.shell("kill -9 $$", profile={"type": "disabled"})[0] == -signal.SIGKILL
    script = "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status; echo x > f"
    assert box.shell(script, profile={"type": "disabled"})[1].split()[1::2] == ["0", "0"]
    external = {"type": "external", "network": "restricted"}
    assert box.shell(script, profile=external)[1].split()[1::2] == ["1", "2"]
    assert box.names() == ["f"]


@pytest.mark.parametrize("profile", [READ_ONLY, {"type": "disabled"}])
def test_a_command_that_cannot_be_run(box: Box, profile: object) -> None:
    text = f"{LINK_NAME}: Failed to execvp /no/such: No such file or directory (os error 2)\n"
    assert box.run("--", "/no/such", profile=profile) == (101, "", text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "No command specified to execute."),
        (
            ["--apply-seccomp-then-exec", "--use-legacy-landlock", "--", "true"],
            "--apply-seccomp-then-exec is incompatible with --use-legacy-landlock",
        ),
        (
            ["--allow-network-for-proxy", "--", "true"],
            "failed to prepare host proxy routing bridge: "
            "managed proxy mode requires proxy environment variables",
        ),
        (
            ["--allow-network-for-proxy", "--apply-seccomp-then-exec", "--", "true"],
            "managed proxy mode requires --proxy-route-spec",
        ),
        (
            [
                "--allow-network-for-proxy",
                "--apply-seccomp-then-exec",
                '--proxy-route-spec={"routes":[]}',
                "true",
            ],
            "error activating Linux proxy routing bridge: proxy routing spec contained no routes",
        ),
        (
            ["--allow-network-for-proxy", "--apply-seccomp-then-exec", "--proxy-route-spec=x", "true"],
            "error activating Linux proxy routing bridge: expected value at line 1 column 1",
        ),
    ],
)
def test_what_makes_the_references_program_panic(box: Box, words: list[str], text: str) -> None:
    assert box.run(*words) == (101, "", f"{LINK_NAME}: {text}\n")


def test_a_missing_or_wrong_profile(box: Box) -> None:
    command = [*box.words()[:4], "--sandbox-policy-cwd", str(box.ws)]
    done = subprocess.run([*command, "--", "true"], env=box.env, capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (
        101,
        f"{LINK_NAME}: missing permission profile configuration\n",
    )
    for text, reason in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ('{"type":"x"}', "data did not match any variant of untagged enum PermissionProfileDe"),
    ]:
        words = [*command, "--permission-profile", text, "--", "true"]
        done = subprocess.run(words, env=box.env, capture_output=True, check=False)
        assert done.returncode == 2
        assert f"invalid permission profile JSON: {reason}\n" in done.stderr.decode()


def test_a_policy_that_cannot_be_enforced(box: Box) -> None:
    os.symlink("/tmp", box.ws / ".codex")
    status, _, stderr = box.shell("echo x > f", profile=WORKSPACE)
    assert (status, box.names()) == (1, [".codex"])
    link = f"{box.ws}/.codex"
    text = f"cannot enforce sandbox read-only path {link} because it crosses writable symlink {link}"
    assert stderr == f"error building bubblewrap command: Fatal error: {text}\n"


# --- signals and placeholders ------------------------------------------------------------------------------


def ready(box: Box, script: str) -> subprocess.Popen[bytes]:
    process = box.start("--", "sh", "-c", script, profile=WORKSPACE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_signals_are_passed_on(box: Box, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    with ready(box, f"trap 'echo got; exit 5' {name}; echo ready; while :; do sleep 0.05; done") as process:
        process.send_signal(number)
        assert (process.communicate(timeout=20)[0], process.returncode) == (b"got\n", 5)
    assert box.names() == []


def test_when_it_is_killed_the_view_ends_and_nothing_is_left(box: Box) -> None:
    with ready(box, "echo ready; trap '' TERM HUP INT; exec sleep 765") as process:
        assert box.names() == [".agents", ".codex", ".git"]
        process.kill()
        wait_until(lambda: box.names() == [], timeout=CLEANED_WITHIN_S)
    wait_until(lambda: not _sleeping("765"), timeout=CLEANED_WITHIN_S)


def test_when_its_guard_is_killed_nothing_is_left_either(box: Box) -> None:
    with ready(box, "echo ready; exec sleep 766") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        assert process.wait(20) == 137
        assert box.names() == []
    assert not _sleeping("766")


def _sleeping(seconds: str) -> bool:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                return True
        except OSError:
            continue
    return False


# --- older and inner ways ----------------------------------------------------------------------------------


def test_landlock_where_it_expresses_the_policy(box: Box) -> None:
    status, stdout, stderr = box.shell("echo read; echo x > f", "--use-legacy-landlock")
    assert (status, stdout) == (2, "read\n")
    assert "Permission denied" in stderr


@pytest.mark.parametrize("profile", [WORKSPACE, {}])
def test_landlock_is_refused_where_it_does_not(box: Box, profile: object) -> None:
    text = (
        "permission profiles requiring direct runtime enforcement are incompatible with --use-legacy-landlock"
    )
    assert box.shell("true", "--use-legacy-landlock", profile=profile) == (101, "", f"{LINK_NAME}: {text}\n")


def test_the_inner_stage_only_filters(box: Box) -> None:
    script = "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status; echo x > f"
    assert box.shell(script, "--apply-seccomp-then-exec")[1].split()[1::2] == ["1", "2"]
    enabled = managed(special("root", "read"), network="enabled")
    assert box.shell(script, "--apply-seccomp-then-exec", profile=enabled)[1].split()[1::2] == ["1", "2"]
    everything = {"type": "disabled"}
    assert box.shell(script, "--apply-seccomp-then-exec", profile=everything)[1].split()[1::2] == ["1", "0"]
    assert box.names() == ["f"]


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A proxy that says what it was asked: on a port of loopback and on a Unix socket."""
    path = str(tmp_path / "proxy.sock")
    port_side = socket.create_server(("127.0.0.1", 0))
    path_side = socket.socket(socket.AF_UNIX)
    path_side.bind(path)
    path_side.listen()

    def serve(side: socket.socket) -> None:
        while True:
            try:
                connection, _ = side.accept()
            except OSError:
                return
            with connection:
                head = connection.recv(65536).split(b"\r\n")[0]
                body = b"asked: " + head
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    threads = [threading.Thread(target=serve, args=(side,)) for side in (port_side, path_side)]
    for thread in threads:
        thread.start()
    yield port_side.getsockname()[1], path
    for side in (port_side, path_side):
        side.shutdown(socket.SHUT_RDWR)
        side.close()
    for thread in threads:
        thread.join()


FETCH = (
    "import sys, urllib.request as r; print(r.urlopen('http://example.invalid/x', timeout=5).read().decode())"
)


def test_the_managed_proxy_is_reached_and_nothing_else(box: Box, answering: tuple[int, str]) -> None:
    port, _ = answering
    words = ["--allow-network-for-proxy", "--", "python3", "-c", FETCH]
    assert box.run(*words, http_proxy=f"http://127.0.0.1:{port}") == (
        0,
        "asked: GET http://example.invalid/x HTTP/1.1\n",
        "",
    )
    script = (
        "import socket, sys\n"
        f"for where in (('127.0.0.1', {port}), ('192.0.2.1', 80)):\n"
        "    try: socket.create_connection(where, 1)\n"
        "    except OSError as error: print('no')\n"
        "try: socket.socket(socket.AF_UNIX)\n"
        "except OSError as error: print(error.errno)\n"
        "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))"
    )
    words = ["--allow-network-for-proxy", "--", "python3", "-c", script]
    assert box.run(*words, http_proxy=f"http://127.0.0.1:{port}")[1] == "no\nno\n1\nb'x'\n"


def test_routes_of_the_inner_stage(box: Box, answering: tuple[int, str]) -> None:
    _, path = answering
    spec = json.dumps({"routes": [{"env_key": "http_proxy", "uds_path": path}]})
    options = ["--allow-network-for-proxy", "--apply-seccomp-then-exec", "--proxy-route-spec", spec]
    assert box.run(*options, "--", "python3", "-c", FETCH, http_proxy="http://127.0.0.1:9")[1] == (
        "asked: GET http://example.invalid/x HTTP/1.1\n"
    )


def test_a_route_without_its_variable(box: Box) -> None:
    spec = json.dumps({"routes": [{"env_key": "PIP_PROXY", "uds_path": "/x"}]})
    options = ["--allow-network-for-proxy", "--apply-seccomp-then-exec", "--proxy-route-spec", spec]
    status, _, stderr = box.run(*options, "--", "true", http_proxy="http://127.0.0.1:9")
    assert (status, "missing proxy env key PIP_PROXY" in stderr) == (101, True)


@pytest.mark.parametrize(
    ("more", "denial"),
    [
        pytest.param(
            {"EXECSERVER_ALLOW_NESTED_SANDBOXES": "1"}, b"Read-only file system", id="a view in a view"
        ),
        # Inside nothing can be mounted, and Landlock says the inner policy exactly.
        pytest.param({}, b"Permission denied", id="Landlock"),
    ],
)
def test_a_sandbox_in_a_sandbox(more: dict[str, str], denial: bytes) -> None:
    """As an ordinary user: without capabilities, the kernel lets nobody map user 0 again."""
    python, user = sys.executable, None
    if os.geteuid() == 0:
        python, user = open_python(), ORDINARY
    with tempfile.TemporaryDirectory() as folder:
        box = Box(Path(folder))
        for path in (box.folder, box.ws, box.folder / "run"):
            os.chown(path, user if user is not None else -1, -1)
        _, *inner = box.words("--", "sh", "-c", "echo inner; echo x > f")
        _, *outer = box.words("--", python, *inner, profile=WORKSPACE)
        done = subprocess.run(
            [python, *outer], cwd=box.ws, env={**box.env, **more}, user=user, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout) == (2, b"inner\n"), done.stderr
        # Without the choice, on a kernel whose Landlock governs no files, a view is made inside, too.
        closed = landlock.abi(Kernel()) >= landlock.LEAST_ABI_IN_VIEW
        assert (denial if closed else b"Read-only file system") in done.stderr
        assert box.names() == []


@pytest.mark.parametrize(
    ("options", "profile"),
    [
        ((), READ_ONLY),
        (("--use-legacy-landlock",), READ_ONLY),
        (("--apply-seccomp-then-exec",), READ_ONLY),
        ((), managed(special("root", "write"))),
    ],
)
def test_no_descriptor_of_the_caller_but_stdio_comes_along(
    box: Box, options: tuple[str, ...], profile: object
) -> None:
    opened = os.open(box.folder, os.O_RDONLY)
    try:
        done = subprocess.run(
            box.words(*options, "--", "sh", "-c", "ls /proc/$$/fd", profile=profile),
            cwd=box.ws,
            env=box.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=[opened],
            check=False,
        )
    finally:
        os.close(opened)
    assert (done.returncode, done.stdout.split()) == (0, [b"0", b"1", b"2"]), done
