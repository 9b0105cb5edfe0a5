"""Who may ask for an upgrade: processes of this user that are no more confined than this one."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from execserver.handover.asking import Asker

_PR_SET_NO_NEW_PRIVS = 38
MANY = 1100  # more than `select` knows
CONNECT = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('\\0' + sys.argv[1]);"
    "s.recv(1) if len(sys.argv) < 3 else None"
)


def objection_to(name: str, *wrapper: str, before: Callable[[], None] | None = None, leaves: str = "") -> str:
    """Have a process connect, and return what is said against it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        listener.settimeout(20)
        words = [*wrapper, sys.executable, "-I", "-c", CONNECT, name, *([leaves] if leaves else [])]
        with subprocess.Popen(words, preexec_fn=before, stderr=subprocess.PIPE) as child:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                pytest.skip(f"{wrapper} does not work here")
            with sock:
                if leaves:
                    child.wait(20)
                return Asker(sock).objection() or ""


@pytest.fixture
def name() -> str:
    return f"execserver-test-{os.getpid()}"


def test_a_process_like_this_one_may_ask(name: str) -> None:
    assert objection_to(name) == ""


def test_a_server_with_many_descriptors_can_tell_it_too(name: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY + 100:
        pytest.skip(f"this user may have {hard} descriptors only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY + 100), hard))
    held: list[int] = []
    try:
        while len(held) < MANY:
            held.append(os.dup(0))
        assert objection_to(name) == ""
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_without_new_privileges_may_not(name: str) -> None:
    def confine() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)

    assert "from inside a sandbox" in objection_to(name, before=confine)


def test_one_in_another_user_namespace_may_not(name: str) -> None:
    if subprocess.run(["unshare", "--user", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces can be made here")
    said = objection_to(name, "unshare", "--user", "--map-root-user")
    assert "another user namespace" in said or "cannot be seen" in said


def test_one_that_has_ended_may_not(name: str) -> None:
    assert "has ended" in objection_to(name, leaves="at once")


def test_one_of_another_user_may_not(name: str) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    said = objection_to(name, "setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "--")
    assert said == "only the user of the server, and root, may upgrade it"
