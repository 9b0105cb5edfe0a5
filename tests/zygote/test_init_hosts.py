"""The sandbox init where a machine refuses namespaces or a new /proc, and with a proxy of the host."""

from __future__ import annotations

import _socket
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.kernel import privileges, seccomp
from execserver.sandbox.kernel.seccomp_table import ARCHITECTURES
from execserver.sandbox.kernel.syscalls import Kernel, number_of
from execserver.sandbox.plan import (
    FILTER_PROXY_ROUTED,
    HIDDEN_DIRECTORY,
    NETWORK_PROXY,
    READ,
    WRITE,
)
from execserver.zygote.confine.standalone import run_confined
from tests.support.proc import children_of, is_kept_ready
from tests.support.roots import (
    FREE_UID,
    OLD_KERNEL,
    USERS,
    become,
    give,
    in_child,
    mount,
    plan,
)
from tests.support.waiting import wait_until
from tests.zygote.confined_harness import ConfinedZygote
from tests.zygote.harness import PATH

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others and mount")
_NEW_USER = 0x10000000
_JUMP_SET = 0x45  # BPF_JMP | BPF_JSET | BPF_K


# Where user namespaces, or a new /proc, are refused.


def refuse_user_namespaces() -> None:
    """Answer EPERM to every request for a user namespace, in this process and all it starts, for good."""
    kernel = Kernel()
    refuse = (seccomp.RETURN, 0, 0, seccomp.REFUSE)
    code = [
        (seccomp.LOAD, 0, 0, 4),
        (seccomp.JUMP_EQUAL, 1, 0, ARCHITECTURES[kernel.machine]),
        (seccomp.RETURN, 0, 0, seccomp.ALLOW),
        (seccomp.LOAD, 0, 0, 0),
        (seccomp.JUMP_EQUAL, 0, 1, number_of(kernel.machine, "clone3")),
        (seccomp.RETURN, 0, 0, 0x00050000 | 38),
        (seccomp.JUMP_EQUAL, 1, 0, number_of(kernel.machine, "clone")),
        (seccomp.JUMP_EQUAL, 0, 3, number_of(kernel.machine, "unshare")),
        (seccomp.LOAD, 0, 0, 16),
        (_JUMP_SET, 0, 1, _NEW_USER),
        refuse,
        (seccomp.RETURN, 0, 0, seccomp.ALLOW),
    ]
    privileges.no_new_privileges(kernel)
    seccomp.install_program(kernel, b"".join(struct.pack("<HBBI", *one) for one in code))


class NoUserNamespaces(Kernel):
    """This kernel, once its callers cannot have user namespaces any more."""

    def __init__(self) -> None:
        super().__init__()
        refuse_user_namespaces()


def without_user_namespaces(script: str, user: int, cwd: Path) -> tuple[int, str, str, str]:
    def act() -> int:
        kernel = NoUserNamespaces()
        view = plan(mount(WRITE, cwd), mount(READ, cwd / ".git"), mount(HIDDEN_DIRECTORY, cwd / "secret"))
        return run_confined(
            view, [b"/bin/sh", b"-c", script.encode()], [PATH], os.fsencode(cwd), kernel=kernel
        )

    outcome = in_child(act, user)
    return outcome.status, outcome.out, outcome.err, outcome.refusal


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    """Return a folder with a git folder and a secret."""
    for name in (".git", "secret"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret" / "key").write_text("key")
    return tmp_path


@as_root
def test_real_root_needs_no_user_namespace(ws: Path) -> None:
    script = (
        "readlink /proc/self/ns/user; grep -E 'Cap(Eff|Bnd)|NoNew' /proc/self/status; echo x > new;"
        "echo x > .git/new; cat secret/key; echo x > /etc/new; (: > /proc/sys/kernel/core_pattern);"
        "mount -o remount,bind,rw /; umount -l secret; mknod d c 1 3; chown 5 new;"
        "unshare -m true; readlink /proc/1/root; kill -9 1; echo alive"
    )
    status, out, err, refusal = without_user_namespaces(script, 0, ws)
    assert (status, refusal) == (0, "")
    words = out.split()
    assert words[0] == os.readlink("/proc/self/ns/user")
    assert words[1:7] == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
    assert words[-1] == "alive"
    assert "key" not in words
    assert err.count("Read-only file system") == 3, err
    assert sorted(path.name for path in ws.iterdir()) == [".git", "new", "secret"]
    assert (ws / "new").stat().st_uid == 0
    assert list((ws / ".git").iterdir()) == []


def test_an_ordinary_user_without_user_namespaces_is_refused(ws: Path) -> None:
    give(ws, USERS[-1])
    if USERS[-1] == 0:
        pytest.skip("only root here")
    _, _, _, refusal = without_user_namespaces("touch ran", USERS[-1], ws)
    assert refusal == "cannot make namespaces: Operation not permitted"
    assert not (ws / "ran").exists()


LOOK_AROUND = """
grep ' /proc ' /proc/self/mountinfo | tail -1 | cut -d' ' -f 6 | cut -d, -f 1
cat /proc/*/environ 2> /dev/null | grep -a -c marker
echo x > new; ls -d /proc/self/fd; cat /proc/$1/comm; ls /proc/$1/root/ /proc/$1/cwd/; kill -9 $1
"""


@as_root
@pytest.mark.parametrize("kernel", [None, Kernel(OLD_KERNEL)], ids=["new", "old"])
def test_a_masked_proc_of_the_machine_is_shown_read_only(kernel: Kernel | None, tmp_path: Path) -> None:
    give(tmp_path, FREE_UID)

    def act() -> int:
        own = Kernel()
        own.call("unshare", 0x20000)
        own.call("mount", None, b"/", None, 1 << 18 | 1 << 14, None)
        # What container engines do; from then on no ordinary user gets a new one.
        own.call("mount", b"tmpfs", b"/proc/irq", b"tmpfs", 1, None)
        become(FREE_UID)
        # One of this user's other programs, which everything of this user's could look into outside.
        secret = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {"SECRET": "marker"})
        view = plan(mount(WRITE, tmp_path))
        argv = [b"/bin/sh", b"-c", LOOK_AROUND.encode(), b"sh", b"%d" % secret]
        try:
            return run_confined(view, argv, [PATH], os.fsencode(tmp_path), kernel=kernel)
        finally:
            os.kill(secret, signal.SIGKILL)
            os.waitpid(secret, 0)

    outcome = in_child(act)
    words = outcome.out.split()
    assert words == ["ro", "0", "/proc/self/fd", "sleep"], outcome
    assert (tmp_path / "new").exists()


# A way to a proxy of the host.


@pytest.fixture
def proxy() -> Iterator[int]:
    """Return the port of something on loopback that answers every connection with a word."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)

    def serve() -> None:
        while True:
            try:
                number, _ = listener._accept()  # type: ignore[attr-defined]
            except OSError:
                return
            os.write(number, b"word\n")
            os.close(number)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(_socket.SHUT_RDWR)
    thread.join()
    listener.close()


@pytest.mark.parametrize("user", USERS)
def test_a_proxy_of_the_host_is_reached_and_nothing_else(user: int, proxy: int) -> None:
    if not os.access("/bin/bash", os.X_OK):
        pytest.skip("no /bin/bash here to make connections")
    view = plan(network=NETWORK_PROXY, syscall_filter=FILTER_PROXY_ROUTED)
    script = (
        "echo $HTTP_PROXY; port=${HTTP_PROXY##*:}; read word < /dev/tcp/127.0.0.1/$port; echo $word;"
        f"(: < /dev/tcp/127.0.0.1/{proxy}); (: < /dev/tcp/192.0.2.1/80); echo done"
    )
    env = [PATH, b"HTTP_PROXY=http://localhost:%d" % proxy]
    with ConfinedZygote(user) as zygote:
        status, out, err = zygote.run(b"/bin/bash", b"-c", script.encode(), plan=view, env=env)
        words = out.decode().split()
        assert status == 0, err
        assert words[0].startswith("http://127.0.0.1:")
        assert not words[0].endswith(f":{proxy}")
        assert words[1:] == ["word", "done"]
        assert err.count(b"refused") + err.count(b"unreachable") >= 2, err
        # The bridge ends with what it served.
        wait_until(lambda: all(map(is_kept_ready, children_of(zygote.pid))))


def test_a_proxy_without_variables_is_refused() -> None:
    view = plan(network=NETWORK_PROXY, syscall_filter=FILTER_PROXY_ROUTED)
    with ConfinedZygote(USERS[-1]) as zygote:
        reason = zygote.root_refusal(view)
    assert reason == (
        "failed to prepare host proxy routing bridge: managed proxy mode requires proxy environment variables"
    )
