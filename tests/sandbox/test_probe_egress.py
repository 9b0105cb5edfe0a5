"""What network proxies and credential masking need, each missing once."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from execserver.protocol.environment import ShellInfo
from execserver.sandbox.backends import probe_egress
from execserver.sandbox.backends.probe_egress import MASKING, PROXY, check_egress, check_masking
from execserver.services.machine.environment import describe


@pytest.fixture
def environ(tmp_path: Path) -> dict[bytes, bytes]:
    return {b"CODEX_HOME": os.fsencode(tmp_path / "codex")}


def announced(environ: dict[bytes, bytes]) -> set[bool]:
    told = describe(environ, ShellInfo(name="sh", path="/bin/sh"), None, None).capabilities
    return {told.credential_masking, told.credential_masking_custom_providers}


def test_where_all_of_it_holds_both_work_and_nothing_is_made(
    environ: dict[bytes, bytes], tmp_path: Path
) -> None:
    proxy, masking = check_egress(environ)
    assert (proxy.name, proxy.works, masking.name, masking.works) == (PROXY, True, MASKING, True)
    assert masking.detail == f"certificates in {tmp_path}/codex/proxy"
    assert list(tmp_path.iterdir()) == []
    assert announced(environ) == {True}


def refusing(error: int) -> Any:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(error, os.strerror(error))

    return refuse


def test_without_memory_files_it_is_not_announced(
    environ: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "memfd_create", refusing(errno.ENOSYS))
    check = check_masking(environ)
    assert check.blocker == "memory files are refused (memfd_create): Function not implemented"
    assert check.cure == "allow memfd_create"
    assert announced(environ) == {False}


def test_without_proc_it_is_not_announced(
    environ: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def without_proc(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", without_proc)
    before = len(os.listdir("/dev/fd"))
    check = check_masking(environ)
    assert check.blocker == "no file can be opened through /proc/self/fd: No such file or directory"
    assert announced(environ) == {False}
    assert len(os.listdir("/dev/fd")) == before


def test_without_a_private_folder_it_is_not_announced(environ: dict[bytes, bytes], tmp_path: Path) -> None:
    (tmp_path / "codex").mkdir()
    (tmp_path / "codex" / "proxy").symlink_to(tmp_path)
    check = check_masking(environ)
    assert check.blocker == f"{tmp_path}/codex/proxy is a symlink or no folder; remove it"
    assert "this user's own" in check.cure
    assert announced(environ) == {False}


@pytest.mark.parametrize("is_made", [False, True])
def test_where_the_folder_cannot_be_written_it_is_not_announced(
    is_made: bool, environ: dict[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "codex" / "proxy").mkdir(parents=is_made) if is_made else None
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not mode & os.W_OK)
    place = tmp_path / "codex" / "proxy" if is_made else tmp_path
    assert check_masking(environ).blocker == f"{place} is no folder that this user may write to"
    assert announced(environ) == {False}


def test_without_loopback_neither_works(environ: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_server", refusing(errno.EADDRNOTAVAIL))
    proxy, masking = check_egress(environ)
    assert proxy.blocker == "no connection over 127.0.0.1: Cannot assign requested address"
    assert masking.blocker == "it needs network proxies"
    assert proxy.cure == masking.cure == "bring the loopback interface up (ip link set lo up)"


def test_where_nobody_tells_who_connects_there_are_no_proxies(
    environ: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_egress, "_TABLE", "/nonexistent")
    assert check_egress(environ)[0].works
    monkeypatch.setattr(probe_egress, "_NETLINK_SOCK_DIAG", 99)
    assert check_egress(environ)[0].blocker == "the kernel does not tell who connects"
