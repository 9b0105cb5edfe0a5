"""Sockets in the file system: private from the start, replaced only when stale, removed at the end."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from execserver import unix_socket
from execserver.unix_socket import SocketFileError, bind_file, peer_uid


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A short path for a socket, whatever the folder of the test is called."""
    monkeypatch.chdir(tmp_path)
    return "s"


def stale(path: str) -> None:
    """Leave a socket behind as a server does that was killed."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_the_file_is_its_users_alone_whatever_the_umask(place: str, mask: int) -> None:
    old = os.umask(mask)
    try:
        sock, file = bind_file(place)
        assert os.umask(mask) == mask
    finally:
        os.umask(old)
    with sock:
        assert stat.S_IMODE(os.lstat(place).st_mode) == 0o600
        file.remove()
    assert not os.path.lexists(place)


def test_a_stale_socket_is_replaced_and_nothing_is_left_of_it(place: str) -> None:
    stale(place)
    sock, file = bind_file(place)
    with sock:
        assert os.listdir() == [place]
        file.remove()


def test_a_socket_that_is_served_is_in_use(place: str) -> None:
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(place)
        served.listen(1)
        with pytest.raises(OSError) as refused:
            bind_file(place)
        assert refused.value.errno == errno.EADDRINUSE
        assert os.listdir() == [place]


def test_a_server_that_was_faster_keeps_its_socket(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two find the same stale socket; the slower one takes away what the faster one has put there since."""
    stale(place)
    looks = unix_socket._is_served
    with socket.socket(socket.AF_UNIX) as faster:

        def slow_look(path: str) -> bool:
            served = looks(path)
            monkeypatch.setattr(unix_socket, "_is_served", looks)
            os.unlink(place)
            faster.bind(place)
            faster.listen(1)
            return served

        monkeypatch.setattr(unix_socket, "_is_served", slow_look)
        with pytest.raises(OSError) as refused:
            bind_file(place)
        assert refused.value.errno == errno.EADDRINUSE
        assert looks(place)
        assert os.listdir() == [place]


def test_what_is_no_socket_stays(place: str) -> None:
    Path(place).write_text("precious")
    with pytest.raises(SocketFileError, match="something else than a socket"):
        bind_file(place)
    assert Path(place).read_text() == "precious"


def test_a_socket_of_another_user_stays(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stale(place)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(SocketFileError, match="another user"):
        bind_file(place)
    assert os.path.lexists(place)


def test_the_end_removes_its_own_file_only(place: str) -> None:
    sock, file = bind_file(place)
    with sock, socket.socket(socket.AF_UNIX) as other:
        os.rename(place, "moved")
        other.bind(place)
        file.remove()
        assert sorted(os.listdir()) == ["moved", place]


def test_a_path_that_is_too_long_is_told(tmp_path: Path) -> None:
    with pytest.raises(SocketFileError, match="at most 107 bytes"):
        bind_file("/" + "x" * 107)


def test_the_kernel_tells_who_connected() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == os.geteuid()
