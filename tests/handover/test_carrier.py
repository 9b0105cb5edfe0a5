"""State and descriptors over an exec, as far as one process can show it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from execserver.handover.carrier import HandoverError, Incoming, Outgoing, received
from execserver.handover.records import (
    STATE_VERSION,
    Handover,
    PackedListener,
    PackedSessions,
    PackedSpawner,
)
from execserver.runtime_paths import STATE_VARIABLE


def state_of(listening: int, version: int = STATE_VERSION) -> Handover:
    return Handover(
        version=version,
        from_version="1.0",
        began_at=1.5,
        front=PackedListener(listening, None, [], []),
        spawner=PackedSpawner([], [7], []),
        sessions=PackedSessions([], [], [("id", 2.5)], 0),
        metrics=None,
        asker=None,
        signals=0,
        program=0,
    )


@pytest.fixture
def kept() -> Iterator[int]:
    fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    yield fd
    try:
        os.close(fd)
    except OSError:
        pass  # the test has closed it


def test_what_was_packed_comes_out_equal_and_its_descriptors_are_closed_for_children(kept: int) -> None:
    out = Outgoing()
    state = state_of(out.keep(kept))
    sealed = out.sealed(state, 1024)
    out.set_inheritable(True)
    assert os.get_inheritable(kept)
    environ = {STATE_VARIABLE: str(sealed), "PATH": "/bin"}
    incoming = received(environ)
    assert incoming is not None
    assert environ == {"PATH": "/bin"}
    assert not os.get_inheritable(kept)
    assert (incoming.soft_nofile, incoming.state()) == (1024, state)
    assert incoming.take(kept) == kept
    assert incoming.close_rest() == 0


def test_what_nobody_takes_is_closed(kept: int) -> None:
    out = Outgoing()
    sealed = out.sealed(state_of(out.keep(kept)), 1024)
    incoming = Incoming(sealed)
    assert incoming.close_rest() == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(kept)


def test_bytes_lie_beside_the_records_in_their_order() -> None:
    out = Outgoing()
    many = [b"%d," % number for number in range(3000)]  # more than one call of the kernel takes
    places = [out.put(many), out.put([]), out.put([b"last"])]
    whole = b"".join(many)
    assert places == [0, len(whole), len(whole)]
    incoming = Incoming(out.sealed(state_of(0), 1024))
    assert bytes(incoming.beside) == whole + b"last"
    assert incoming.state() == state_of(0)
    incoming.close_rest()
    assert bytes(incoming.beside) == b""


@pytest.mark.parametrize("room", [1, 1 << 20])
def test_room_that_was_made_is_used_as_far_as_it_is_needed(room: int) -> None:
    whole = bytes(range(256)) * 200
    out = Outgoing()
    out.put([whole])
    out.make_room(room)
    sealed = out.sealed(state_of(0), 1024)
    assert os.fstat(sealed).st_size < len(whole) + 1000
    out.close()  # it is the new program's by now
    incoming = Incoming(sealed)
    assert (bytes(incoming.beside), incoming.state()) == (whole, state_of(0))


def test_room_that_there_is_not_is_done_without() -> None:
    before = os.listdir("/proc/self/fd")
    out = Outgoing()
    out.make_room(0)  # an error of the kernel, as for want of memory
    assert os.listdir("/proc/self/fd") == before
    os.close(out.sealed(state_of(0), 1024))
    given_up = Outgoing()
    given_up.make_room(4096)
    given_up.close()
    assert os.listdir("/proc/self/fd") == before


def test_without_the_variable_nothing_was_handed_over() -> None:
    assert received({"PATH": "/bin"}) is None


@pytest.mark.parametrize("text", ["", "x", "-1", "٣", "99999"])
def test_a_variable_that_names_no_state_is_refused(text: str) -> None:
    with pytest.raises(HandoverError):
        received({STATE_VARIABLE: text})


def test_a_file_that_somebody_could_still_change_is_refused() -> None:
    fd = os.memfd_create("state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with pytest.raises(HandoverError, match="not sealed"):
            Incoming(fd)
    finally:
        os.close(fd)


def test_a_state_of_another_version_is_refused() -> None:
    sealed = Outgoing().sealed(state_of(0, version=STATE_VERSION + 1), 1024)
    incoming = Incoming(sealed)
    with pytest.raises(HandoverError, match=f"version {STATE_VERSION + 1}"):
        incoming.state()


def test_the_state_cannot_be_changed_behind_the_seal() -> None:
    sealed = Outgoing().sealed(state_of(0), 1024)
    try:
        with pytest.raises(PermissionError):
            os.write(sealed, b"x")
        with pytest.raises(PermissionError):
            os.ftruncate(sealed, 0)
    finally:
        os.close(sealed)
