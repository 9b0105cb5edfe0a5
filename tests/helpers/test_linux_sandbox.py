"""`codex-linux-sandbox` as anyone starts it: what the command may do, how it ends, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.helpers.sandbox_box import LINK_NAME, PATH, READ_ONLY, WORKSPACE, Box
from tests.support.sandboxes import deny_glob, managed, rule, special
from tests.support.waiting import wait_until

CLEANED_WITHIN_S = 2.0 if LONG else 20.0  # short runs share the machine
LONG_S = str(10_000 + os.getpid())  # no other run of the tests sleeps for as long


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


def test_a_hidden_folder_makes_way_for_home_or_the_root_unless_it_was_named_through_a_link(box: Box) -> None:
    profile = managed(special("minimal", "read"), rule(box.folder / "home", "read"))
    (box.folder / "home").mkdir()
    (box.folder / "link").symlink_to(box.ws)
    (box.folder / "shown").symlink_to(box.folder / "home")
    script = ("--", "sh", "-c", "/bin/pwd; printenv PWD")
    for home in (str(box.folder / "home"), "/nonesuch"):
        where = home if home != "/nonesuch" else "/"
        assert box.run(*script, profile=profile, HOME=home) == (0, f"{where}\n{where}\n", "")
    gone = f"codex-linux-sandbox: Can't chdir to {box.ws}: No such file or directory\n"
    linked = ("--command-cwd", str(box.folder / "link"), *script)
    assert box.run(*linked, profile=profile, HOME="/usr") == (1, "", gone)
    shown = ("--command-cwd", str(box.folder / "shown"), "--", "/bin/pwd")
    assert box.run(*shown, profile=profile) == (0, f"{box.folder}/home\n", "")


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
    with ready(box, f"echo ready; trap '' TERM HUP INT; exec sleep {LONG_S}") as process:
        assert box.names() == [".agents", ".codex", ".git"]
        process.kill()
        wait_until(lambda: box.names() == [], timeout=CLEANED_WITHIN_S)
    wait_until(lambda: not _sleeping(LONG_S), timeout=CLEANED_WITHIN_S)


def test_when_its_guard_is_killed_nothing_is_left_either(box: Box) -> None:
    with ready(box, f"echo ready; exec sleep {LONG_S}") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        assert process.wait(20) == 137
        assert box.names() == []
    assert not _sleeping(LONG_S)


def _sleeping(seconds: str) -> bool:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                return True
        except OSError:
            continue
    return False
