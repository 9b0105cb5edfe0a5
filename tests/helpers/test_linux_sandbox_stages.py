"""`codex-linux-sandbox` with Landlock, as the inner stage, with a managed proxy, and inside of a sandbox."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.syscalls import Kernel
from tests.e2e.sandbox_places import ORDINARY
from tests.helpers.sandbox_box import LINK_NAME, READ_ONLY, WORKSPACE, Box
from tests.support.opened import open_python
from tests.support.sandboxes import managed, special


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


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
def answering(socket_folder: str) -> Iterator[tuple[int, str]]:
    """A proxy that says what it was asked: on a port of loopback and on a Unix socket."""
    path = f"{socket_folder}/proxy.sock"
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
        closed = landlock.abi(Kernel()) >= landlock.LEAST_ABI_IN_ROOT
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


def test_processes_are_shared_where_landlock_keeps_the_command_from_them(box: Box) -> None:
    if landlock.abi(Kernel()) < landlock.SCOPED_ABI:
        pytest.skip(f"Landlock here has no scopes: version {landlock.abi(Kernel())}")
    script = f"readlink /proc/self/ns/pid; kill -0 {os.getpid()} 2>/dev/null || echo refused; echo x > f"
    status, stdout, _ = box.shell(script, "--inherit-pid-namespace")
    assert (status, stdout) == (2, f"{os.readlink('/proc/self/ns/pid')}\nrefused\n")
    status, stdout, stderr = box.shell("true", "--inherit-pid-namespace", profile=WORKSPACE)
    assert (status, stdout) == (1, "")
    assert "processes are shared, which only Landlock can do safely" in stderr
    assert box.names() == []
