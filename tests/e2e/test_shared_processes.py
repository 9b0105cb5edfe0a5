"""`--linux-sandbox-pid-namespace inherit`: commands see the server's processes, and reach none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.syscalls import Kernel
from tests.support.peer import Json, Peer
from tests.support.running import outcome, start
from tests.support.server_process import ServerProcess, base_environment

SECRET = "secret-of-a-neighbour"
INHERIT = ("--linux-sandbox-pid-namespace", "inherit")
PROBE = """
import os, signal, ctypes, sys
pid, server = int(sys.argv[1]), int(sys.argv[2])
def tried(act):
    try:
        return repr(act())
    except OSError as error:
        return error.strerror
libc = ctypes.CDLL(None, use_errno=True)
def ptrace():
    if libc.ptrace(16, pid, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def read(name, target=pid):
    return open(f"/proc/{target}/{name}", "rb").read(64)
attacks = {
    "signal": lambda: os.kill(pid, signal.SIGKILL),
    "signal 0": lambda: os.kill(pid, 0),
    "group": lambda: os.killpg(pid, signal.SIGKILL),
    "queue": lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL),
    "server": lambda: os.kill(server, signal.SIGKILL),
    "starter": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "ptrace": ptrace,
    "mem": lambda: read("mem"),
    "memory to write": lambda: os.open(f"/proc/{pid}/mem", os.O_WRONLY),
    "root": lambda: os.listdir(f"/proc/{pid}/root"),
    "cwd": lambda: os.listdir(f"/proc/{pid}/cwd"),
    "environ": lambda: read("environ"),
    "environ of the server": lambda: read("environ", server),
    "fd": lambda: os.open(f"/proc/{pid}/fd/1", os.O_RDONLY),  # their numbers are no secret
    "maps": lambda: read("maps"),
    "oom": lambda: os.write(os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY), b"900"),
}
got = {name: tried(act) for name, act in attacks.items()}
print(os.readlink("/proc/self/ns/pid"), os.path.exists(f"/proc/{pid}"))
print({name: how for name, how in got.items() if how not in ("Operation not permitted", "Permission denied")})
"""


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    if landlock.abi(Kernel()) < landlock.SCOPED_ABI:
        pytest.skip(f"Landlock here has no scopes: version {landlock.abi(Kernel())}")
    with ServerProcess(options=INHERIT) as server:
        yield server


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[Peer]:
    with server.connect() as peer:
        peer.call("initialize", {"clientName": "x"})
        peer.send({"method": "initialized"})
        yield peer


def context(*entries: Json) -> Json:
    root = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}
    file_system = {"type": "restricted", "entries": [root, *entries]}
    permissions = {"type": "managed", "file_system": file_system, "network": "restricted"}
    where = {"cwd": "file:///", "workspaceRoots": []}
    return {"permissions": permissions, "windowsSandboxLevel": "disabled", **where}


def test_a_command_sees_the_processes_of_the_server_and_reaches_none(
    server: ServerProcess, peer: Peer
) -> None:
    env = {**base_environment(), "NAME": SECRET}
    with subprocess.Popen(["sleep", "60"], env=env, start_new_session=True) as victim:
        try:
            argv = [sys.executable, "-c", PROBE, str(victim.pid), str(server.pid)]
            start(peer, "p", argv, sandbox=context(), env={"PATH": os.environ["PATH"]})
            done = outcome(peer, "p")
            namespace, attacks = done.stdout.decode().splitlines()
            assert namespace == f"{os.readlink('/proc/self/ns/pid')} True"
            assert attacks == "{}"
            assert victim.poll() is None
        finally:
            victim.kill()


def test_a_policy_for_which_it_is_not_safe_is_refused(peer: Peer, tmp_path: Path) -> None:
    """A process left behind would outlive the masks of what is missing, and could make it."""
    folder = {"path": {"type": "path", "path": tmp_path.as_uri()}, "access": "write"}
    writing = {**context(folder), "workspaceRoots": [tmp_path.as_uri()], "cwd": tmp_path.as_uri()}
    params = {
        "processId": "p", "argv": ["true"], "cwd": "file:///", "env": {}, "tty": False, "sandbox": writing
    }  # fmt: skip
    peer.send({"id": "no", "method": "process/start", "params": params})
    refused = peer.take({"id": "no"})["error"]["message"]
    assert "processes are shared, which only Landlock can do safely" in refused
    assert "without `--linux-sandbox-pid-namespace inherit`" in refused
    hidden = {"path": {"type": "path", "path": tmp_path.as_uri()}, "access": "none"}
    params["sandbox"] = context(hidden)
    peer.send({"id": "no", "method": "process/start", "params": params})
    assert "it cannot" in peer.take({"id": "no"})["error"]["message"]


def test_files_are_served_in_their_sandbox_as_ever(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    params = {"path": (tmp_path / "f").as_uri(), "sandbox": context()}
    assert peer.call("fs/readFile", params)["dataBase64"] == "eA=="
