"""Standard input on its way to a process: in order, with its end, without the keys for the client.

The event loop reads, so that keys for the client count while the box does not answer, and sends what is short
at once.  Everything else waits for a greenlet: eight pieces, 1 MiB together; then reading stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import gevent
from gevent.event import Event

from execserver.box.commands.escapes import Asked, Escapes
from execserver.box.descriptors import Source
from execserver.client.errors import ExecServerError, InvalidRequestError, UnsupportedByServer
from execserver.client.greenlets import quick_writes  # noqa: F401  used by the process, and loaded now, in time
from execserver.client.rules.recovery import SessionState

if TYPE_CHECKING:
    from execserver.box.commands.notices import Notices
    from execserver.box.keys.local_echo import LocalEcho
    from execserver.box.manner import Manner
    from execserver.client.client import ExecServerClient
    from execserver.client.process import RemoteProcess

_PIECES: Final = 8
_INTERRUPT_KEY: Final = 0x03
_END_KEY: Final = b"\x04"
_INTERRUPTED: Final = 130
_PATIENCE_S: Final = 2.0
_TAKEN: Final = "another session writes to"  # the server's words for it
_HELP: Final = "~. ends this session, {detach}~? shows this, ~~ types one ~ (each at the beginning of a line)"
_HELP_DETACH: Final = "~d leaves it running, "


class Keyboard:
    """Reads descriptor 0 for one process."""

    def __init__(
        self,
        client: ExecServerClient,
        process: RemoteProcess,
        manner: Manner,
        leave: Callable[[int, bool], None],
        notices: Notices,
        echo: LocalEcho | None,
    ) -> None:
        self._client = client
        self._process = process
        self._manner = manner
        self._leave = leave
        self._notices = notices
        self._echo = echo
        self._escapes = Escapes() if manner.escapes else None
        self._pieces: deque[bytes] = deque()
        self._came = Event()
        self._room = Event()
        self._is_idle = False  # the greenlet that sends waits for something to send
        self._quick = process.quick_writes(self._came.set)

    def run(self) -> None:
        """Read until the end of the input; a killed one stops reading at once."""
        sender, source = gevent.spawn(self._send), Source(0)
        try:
            while source.is_file and (typed := source.read()):
                self._wait_for_room()
                self._take(typed)
            while not (source.is_file or source.read_at_once(self._take)):
                self._wait_for_room()
            self._put(b"")
            sender.join()
        finally:
            source.close()
            sender.kill()

    def _take(self, typed: bytes) -> bool:
        """Take what was read; return whether there is room for more."""
        asked: Sequence[Asked] = ()
        if self._escapes is not None:
            typed, asked = self._escapes.feed(typed)
        if _INTERRUPT_KEY in typed and self._manner.terminal is not None and self._is_alone():
            self._leave(_INTERRUPTED, False)
        if typed and self._process.writer:
            self._put(typed)
            if self._echo is not None:
                self._echo.typed(typed)
        for each in asked:
            self._answer(each)
        return len(self._pieces) < _PIECES

    def _wait_for_room(self) -> None:
        while len(self._pieces) >= _PIECES:
            self._room.clear()
            self._room.wait()

    def _put(self, piece: bytes) -> None:
        """Send a piece, or keep it for the greenlet that sends; never waits."""
        if self._is_idle and not self._pieces and self._quick.send(piece):
            return
        self._pieces.append(piece)
        self._came.set()

    def _is_alone(self) -> bool:
        """Return whether no process takes what is typed: the connection is lost, or somebody else writes."""
        lost = self._client.state is SessionState.RESUMING and self._escapes is None
        return lost or not self._process.writer

    def _answer(self, asked: Asked) -> None:
        if asked is Asked.END:
            self._leave(_INTERRUPTED, False)
        elif asked is Asked.DETACH and self._manner.can_detach:
            self._leave(0, True)
        elif asked is Asked.DETACH:
            self._notices.say("this box does not keep sessions, so there is no leaving it running")
        else:
            self._notices.say(_HELP.format(detach=_HELP_DETACH if self._manner.can_detach else ""))

    def _send(self) -> None:
        while True:
            try:
                self._send_all()
                return
            except InvalidRequestError as error:
                if _TAKEN not in error.message:
                    return
                self._process.writer = False
                self._pieces.clear()  # typed for nobody
                self._room.set()
                self._quick = self._process.quick_writes(self._came.set)
            except ExecServerError:
                return  # the process takes no more, or the session has ended: the output tells which

    def _send_all(self) -> None:
        while data := self._joined():
            self._quick.finish()
            self._process.write(data)
        self._quick.finish()
        self._send_end()

    def _joined(self) -> bytes:
        """Return what waits, at least one piece; b"" for the end, which comes alone."""
        while not self._pieces:
            if self._quick.needs_finish:
                self._quick.finish()
                continue
            self._came.clear()
            self._is_idle = True
            self._came.wait()
            self._is_idle = False
        taken: list[bytes] = []
        while self._pieces and (self._pieces[0] or not taken):
            taken.append(self._pieces.popleft())
        self._room.set()
        return b"".join(taken)

    def _send_end(self) -> None:
        if not self._process.writer:
            return
        if self._manner.tty:
            self._process.write(_END_KEY)  # a terminal has no other end of input
            return
        try:
            self._process.close_stdin()
        except UnsupportedByServer:
            gevent.sleep(_PATIENCE_S)  # most commands do not read their input, and have ended by then
            self._notices.say("this box cannot be told of the end of the input; ^C ends the command")
