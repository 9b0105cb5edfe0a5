"""From what a killed server has written down to the state that an upgrade would have handed over.

Reading changes nothing but one thing: what a terminal's pipe in between still has is moved to where the rest
is.  So a server that is killed while it reads is followed by one that reads the same.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import msgspec

from execserver.handover.carrier import HandoverError, Incoming
from execserver.handover.records import (
    STATE_VERSION,
    Handover,
    PackedLink,
    PackedListener,
    PackedProcess,
    PackedSession,
    PackedSessions,
    PackedSpawner,
)
from execserver.survival import process_journal as journal_of
from execserver.survival.course import CLOSED, Course
from execserver.survival.keeping import LEDGER
from execserver.survival.ledger import CHILD, HEAD, KEY, PROCESS, SESSION, ZYGOTE, read
from execserver.survival.records import VERSION, Head
from execserver.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from execserver.settings import Settings
    from execserver.survival.keeping import Keeping

_PIPE_BYTES: Final = 64 * 1024


class Recovered(Incoming):
    """What a keeper has held: the descriptors, and what their processes have put out."""

    def __init__(self, keeping: Keeping, settings: Settings) -> None:
        """Read everything.  Raises HandoverError."""
        self._table = keeping.table
        self._left = set(keeping.table.values())
        self._outputs: list[bytes] = []
        self._size = 0
        self._ended: set[tuple[int, int]] = set()
        self._inputs: dict[tuple[str, str], tuple[int, int]] = {}
        self._values = read(self._fd(LEDGER))
        try:
            self.head = msgspec.msgpack.decode(self._values[HEAD], type=Head)
            if self.head.version != VERSION:
                raise HandoverError(f"what {self.head.version} has written, {VERSION} does not read")
            self.soft_nofile = self.head.soft_nofile
            self._state: Handover | None = self._read(settings)
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            raise HandoverError(f"what the server has written down cannot be read: {error!r}") from None
        self.beside = memoryview(b"".join(self._outputs))
        self._outputs.clear()

    def state(self) -> Handover:
        """See `Incoming`; it is kept for the caller only, since this object stays as long as the server."""
        state, self._state = self._state, None
        assert state is not None
        return state

    def input_of(self, session_id: str, process_id: str) -> tuple[int, int]:
        """Return the file with the input of a process, which the caller owns, and how much was accepted."""
        return self._inputs.pop((session_id, process_id))

    def close_rest(self) -> int:
        """See `Incoming`; so it does with the input of processes whose session had ended."""
        self._left.update([fd for fd, _ in self._inputs.values()])
        self._inputs.clear()
        self._values.clear()
        return super().close_rest()

    def _fd(self, key: int) -> int:
        return self._table[key]

    def _named(self, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        for name, value in self._values.items():
            if name.startswith(kind):
                yield name[len(kind) :], value

    def _read(self, settings: Settings) -> Handover:
        processes: dict[str, list[PackedProcess]] = {}
        for _, value in self._named(PROCESS):
            places = journal_of.PLACES.unpack_from(value)
            session_id = value[journal_of.PLACES.size :].decode()
            processes.setdefault(session_id, []).append(self._process(places, session_id, settings))
        sessions = [
            self._session(value, processes.pop(name.decode(), []), settings)
            for name, value in self._named(SESSION)
        ]
        own = [each for session in sessions for each in session.processes]
        now = time.monotonic()
        # They have their whole time again: nobody could come while no server was there.
        retention = [
            (one.session_id, each.process_id, now + settings.closed_process_retention_s)
            for one in sessions
            if one.closed is None
            for each in one.processes
            if each.state.phase == CLOSED
        ]
        expiry = [(one.session_id, one.expires_at) for one in sessions if one.keep_s is None]
        return Handover(
            version=STATE_VERSION,
            from_version=__version__,
            began_at=now,
            front=PackedListener(self._fd(self.head.listener), self.head.file, [], []),
            spawner=PackedSpawner(self._links(own), [], []),
            sessions=PackedSessions(sessions, retention, expiry, 0),
            metrics=None if self.head.metrics is None else self._fd(self.head.metrics),
            asker=None,
            signals=-1,
            program=-1,
        )

    def _links(self, processes: list[PackedProcess]) -> list[PackedLink]:
        known = {(each.zygote, each.child_id): each for each in processes if each.zygote}
        children: dict[int, list[tuple[int, int, bool]]] = {}
        for name, _ in self._named(CHILD):
            zygote, child_id = map(int, name.split())
            if (zygote, child_id) in self._ended:
                continue  # its record is still in the socket, and what is left of its group lives on
            own = known.get((zygote, child_id))
            child = (child_id, 0, False) if own is None else (child_id, own.pid, own.state.tty)
            children.setdefault(zygote, []).append(child)
        # Answers to the server before this one may still come: no id is given twice.
        first_id = time.monotonic_ns()
        return [
            PackedLink(int(name), self._fd(*KEY.unpack(value)), first_id, children.get(int(name), []))
            for name, value in self._named(ZYGOTE)
        ]

    def _session(self, value: bytes, own: list[PackedProcess], settings: Settings) -> PackedSession:
        noted = msgspec.msgpack.decode(value, type=PackedSession)
        stays_s = settings.detached_session_ttl_s if noted.keep_s is None else noted.keep_s
        is_closed = [each.process_id for each in own if each.state.phase == CLOSED]
        return msgspec.structs.replace(
            noted,
            expires_at=time.monotonic() + stays_s,
            closed=None if noted.closed is None else is_closed,
            processes=own,
        )

    def _process(self, places: tuple[int, ...], session_id: str, settings: Settings) -> PackedProcess:
        noted, data, input_file, reader, _ = places
        if reader:
            _move_rest(self._fd(reader), self._fd(data))
        course = Course(self._fd(noted), self._fd(data), settings.retained_output_bytes)
        if course.ended_child is not None:
            self._ended.add(course.ended_child)
        packed = course.packed(self._size, self._table, self._rest_of_input(input_file, course))
        self._outputs.append(course.output)
        self._size += len(course.output)
        file = self.take(self._fd(input_file))
        self._inputs[session_id, packed.process_id] = file, course.input_end
        return packed

    def _rest_of_input(self, key: int, course: Course) -> list[bytes]:
        """Return the input that was accepted and not passed on; the file has no more than that then."""
        fd = self._fd(key)
        if not os.fstat(fd).st_size:  # all was passed on
            os.lseek(fd, 0, os.SEEK_SET)
            course.input_end = 0
        passed = os.lseek(fd, 0, os.SEEK_CUR)
        rest = os.pread(fd, course.input_end - passed, passed) if course.input_end > passed else b""
        return [rest] if rest else []


def _move_rest(reader: int, data: int) -> None:
    """Move what a pipe has behind what is in a memory file."""
    try:
        while os.splice(reader, data, _PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK):
            pass
    except BlockingIOError:
        pass  # it is empty, and not at its end: its other end is held, too
