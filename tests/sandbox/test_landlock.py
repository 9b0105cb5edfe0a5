from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

import pytest

from execserver.sandbox.kernel import landlock, privileges
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import NETWORK_HOST, ROOT_EMPTY, WRITE, SandboxPlan
from tests.support.roots import OLD_KERNEL, USERS, give, in_child, mount, plan

ABI = landlock.abi(Kernel())
needs = pytest.mark.skipif(ABI < 1, reason="this kernel has no Landlock")
needs_scopes = pytest.mark.skipif(ABI < 6, reason=f"this kernel's Landlock is of version {ABI}, not 6")


def tried(path: Path | str, flags: int) -> int:
    try:
        os.close(os.open(path, flags, 0o600))
    except OSError as error:
        return error.errno or 0
    return 0


def restricted(view: SandboxPlan, within_root: bool = False) -> None:
    kernel = Kernel()
    privileges.no_new_privileges(kernel)
    landlock.restrict_files(kernel, ABI, view, within_root)


def test_a_kernel_without_landlock_has_version_0() -> None:
    assert landlock.abi(Kernel(OLD_KERNEL)) == 0


@pytest.mark.parametrize(("version", "count"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (7, 16)])
def test_the_rights_grow_with_the_version(version: int, count: int) -> None:
    assert landlock.file_rights(version).bit_count() == count


@needs
@pytest.mark.parametrize("user", USERS)
def test_only_the_writable_mounts_can_be_written(tmp_path: Path, user: int) -> None:
    open_ = give(tmp_path, user) / "open"
    open_.mkdir()
    (open_ / "sub").mkdir()
    (tmp_path / "readable").write_text("x")
    give(tmp_path, user)

    def act() -> int:
        restricted(plan(mount(WRITE, open_)))
        results = [
            tried(open_ / "new", os.O_CREAT | os.O_WRONLY),
            tried(tmp_path / "new", os.O_CREAT | os.O_WRONLY),
            tried(tmp_path / "readable", os.O_WRONLY),
            tried(tmp_path / "readable", os.O_RDONLY),
            tried("/dev/null", os.O_WRONLY),
        ]
        os.rename(open_ / "new", open_ / "sub" / "moved")
        os.write(1, repr(results).encode())
        return 0

    assert in_child(act, user).out == repr([0, errno.EACCES, errno.EACCES, 0, 0])


@needs
def test_what_a_plan_does_not_name_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "named").write_text("x")
    (tmp_path / "other").write_text("x")

    def act() -> int:
        restricted(SandboxPlan(ROOT_EMPTY, (mount(WRITE, tmp_path / "named"),)))
        results = [tried(tmp_path / name, os.O_RDONLY) for name in ("named", "other")]
        os.write(1, repr(results).encode())
        return 0

    assert in_child(act).out == repr([0, errno.EACCES])


@needs
def test_another_object_than_the_plan_was_made_for_gets_no_rights(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    view = plan(mount(WRITE, tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()

    def act() -> int:
        with pytest.raises(OSError) as caught:
            restricted(view)
        return (caught.value.errno or 0) << 8

    assert in_child(act).code == errno.ESTALE


@needs
def test_a_link_in_the_place_of_a_mount_gets_no_rights(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    view = plan(mount(WRITE, tmp_path / "real"))
    (tmp_path / "real").rename(tmp_path / "moved")
    (tmp_path / "real").symlink_to("moved")

    def act() -> int:
        with pytest.raises(OSError) as caught:
            restricted(view)
        return (caught.value.errno or 0) << 8

    assert in_child(act).code == errno.ELOOP


@needs_scopes
@pytest.mark.parametrize(("network", "expected"), [("none", errno.EPERM), (NETWORK_HOST, errno.ECONNREFUSED)])
def test_signals_and_abstract_sockets_of_outside_are_out_of_scope(network: str, expected: int) -> None:
    def act() -> int:
        import _socket

        parent = os.getpid()
        name = b"\0execserver-%d" % parent
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        listener.bind(name)
        pid = os.fork()
        if pid == 0:
            privileges.no_new_privileges(Kernel())
            rules = landlock.scope_rules(Kernel(), ABI, plan(network=network))
            assert rules is not None
            landlock.restrict(Kernel(), rules)
            found = []
            try:
                os.kill(parent, 0)
            except OSError as error:
                found.append(error.errno)
            try:
                _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM).connect(name)
                found.append(errno.ECONNREFUSED)  # stands for: reached
            except OSError as error:
                found.append(error.errno)
            os.write(1, repr(found).encode())
            os._exit(0)
        return os.waitpid(pid, 0)[1]

    assert in_child(act).out == repr([errno.EPERM, expected])


def test_scopes_are_left_to_namespaces_where_the_kernel_has_none() -> None:
    assert landlock.scope_rules(Kernel(), 5, plan()) is None


@pytest.mark.skipif(ABI < 4, reason=f"this kernel's Landlock is of version {ABI}, not 4")
def test_rules_for_connections_name_a_port_and_no_address() -> None:
    """Why Landlock keeps no command to a proxy: whoever listens on the proxy's port anywhere would be one."""
    rule_net_port, connect_tcp = 2, 2

    def act() -> int:
        proxy, other = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.2", 0))
        port = proxy.getsockname()[1]
        elsewhere = socket.create_server(("127.0.0.2", port))
        kernel = Kernel()
        privileges.no_new_privileges(kernel)
        handled = struct.pack("QQ", 0, connect_tcp)
        rules = kernel.call("landlock_create_ruleset", handled, len(handled), 0)
        kernel.call("landlock_add_rule", rules, rule_net_port, struct.pack("QQ", connect_tcp, port), 0)
        kernel.call("landlock_restrict_self", rules, 0)
        found = [socket.socket().connect_ex(server.getsockname()) for server in (proxy, elsewhere, other)]
        os.write(1, repr(found).encode())
        return 0

    assert in_child(act).out == repr([0, 0, errno.EACCES])
