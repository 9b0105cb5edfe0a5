"""One process on a box and the person's end of it: bytes both ways, signals, the size, until it ends.

At most 1 MiB of input waits for the box; then reading stops.  Output that nobody here reads stops the process
there.  A lost connection is waited for in silence; after 2 s one line says so.  The terminal is as it was
when `run` returns, however it returns.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import gevent
from gevent.event import AsyncResult
from gevent.event import Event as Signal
from gevent.hub import get_hub

from execserver.box.commands.keyboard import Keyboard
from execserver.box.commands.notices import Notices
from execserver.box.connecting import patience
from execserver.box.descriptors import Sink
from execserver.box.interrupts import not_ignored
from execserver.box.manner import LOST, Ending, Manner, Predict
from execserver.box.shown import shown
from execserver.client.errors import ExecServerError, OutputGap, TransportClosed
from execserver.client.rules.event_log import UNKNOWN_EXIT, Event, Exited, Output
from execserver.client.rules.recovery import SessionState

if TYPE_CHECKING:
    from execserver.box.commands.past import Past
    from execserver.box.keys.local_echo import LocalEcho
    from execserver.box.terminal import Size
    from execserver.client.client import ExecServerClient
    from execserver.client.process import RemoteProcess

_BY_SIGNAL: Final = 128
_AGAIN_S: Final = 0.1
_LOOK_S: Final = 0.03  # between two looks whether a program still draws
_LOOKS: Final = 10
_SIGNAL_S: Final = 10.0
_REPLAY_S: Final = 10.0
_ALL_ROWS: Final = b"\x1b[r"
# The beginnings of names of terminals that do not know ECH (`CSI n X`), by which is taken back what was
# shown: those without any sequences, Emacs's `term`, and old ones.  GNU screen and tmux know it, though
# terminfo does not say so of all of them.
_CANNOT_TAKE_BACK: Final = ("dumb", "eterm", "vt1", "vt52", "sun", "mach", "pcansi")
_OF_THE_TERMINAL: Final = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
# Signal -> its name for the box.  `interrupt` is the one that every server knows.
_PASSED_ON: Final = {
    signal.SIGINT: "interrupt",
    signal.SIGQUIT: "quit",
    signal.SIGTERM: "term",
    signal.SIGHUP: "hup",
}


class Conversation:
    """Owns the greenlets and the signal handlers between `run` and its return."""

    def __init__(self, client: ExecServerClient, process: RemoteProcess, manner: Manner) -> None:
        self._client = client
        self._process = process
        self._manner = manner
        self._end: AsyncResult[Ending] = AsyncResult()
        self._size_changed = Signal()
        self._terminated = False
        self._redraw = manner.repaints
        self._told: Size | None = None  # the size that the box knows
        self._replayed = Signal()  # set once what the process printed before this conversation is shown
        if not process.has_past:
            self._replayed.set()
        self._past = None if manner.terminal is None or self._replayed.is_set() else _past()
        self._echo = _local_echo(manner)
        self._notices = Notices(manner.name, manner.terminal, manner.escapes, self._echo)

    def run(self) -> Ending:
        """Talk until the end.  Raises termios.error for a terminal that cannot be used."""
        terminal, watchers, workers = self._manner.terminal, self._watchers(), self._workers()
        self._client.watch_connection(self._connection_changed)
        self._process.watch_writer(self._writer_changed)
        ending = Ending(LOST)
        try:
            if terminal is not None:
                terminal.make_raw()
            ending = cast(Ending, self._end.get())
        finally:
            self._client.watch_connection(_ignore)
            self._process.watch_writer(None)
            self._notices.close()
            if self._echo is not None:
                self._echo.withdraw()
            if terminal is not None:
                terminal.restore(after_loss=not ending.is_over)
            gevent.killall(workers)
            for watcher in watchers:
                watcher.close()
        return ending

    def ask_to_end(self, ending: Ending) -> None:
        """End it, unless it has ended."""
        if not self._end.ready():
            self._end.set(ending)

    def leave(self, status: int, detached: bool = False) -> None:
        """End it before the process does, which goes on if that is wanted, or if somebody else uses it."""
        detached = detached or (self._manner.can_detach and not self._process.writer)
        self.ask_to_end(Ending(status, detached=detached))

    def _connection_changed(self, is_back: bool) -> None:
        self._notices.changed(is_back)
        if self._echo is not None:
            self._echo.lost(is_back)
        if is_back:
            self._told = None  # the answer says whether this session still writes
            self._size_changed.set()

    def _writer_changed(self, writes: bool) -> None:
        if not writes:
            self._notices.say(
                "somebody else has taken the keyboard; `execserver attach --take` takes it back"
            )
            return
        self._notices.say("the keyboard is yours again")
        self._redraw = self._manner.terminal is not None
        self._size_changed.set()

    def _workers(self) -> list[gevent.Greenlet[[], None]]:
        work: list[Callable[[], None]] = [self._show]
        if self._manner.takes_input:
            keyboard = Keyboard(
                self._client, self._process, self._manner, self.leave, self._notices, self._echo
            )
            work.append(keyboard.run)
        if self._manner.terminal is not None:
            self._size_changed.set()
            work.append(self._follow_size)
        return [gevent.spawn(each) for each in work]

    def _show(self) -> None:
        stdout, stderr = Sink(1) if self._echo is None else self._echo.begin(Sink(1)), Sink(2)
        try:
            self.ask_to_end(self._shown(stdout, stderr))
        except ExecServerError as error:
            self.ask_to_end(Ending(LOST, shown(str(error), 1000)))
        except BrokenPipeError:
            self.ask_to_end(Ending(_BY_SIGNAL + signal.SIGPIPE))  # as a local command would end
        except OSError as error:
            self.ask_to_end(Ending(LOST, f"the output cannot be written: {error.strerror}"))
        finally:
            stdout.close()
            stderr.close()

    def _shown(self, stdout: Sink | LocalEcho, stderr: Sink) -> Ending:
        code, ended = UNKNOWN_EXIT, None
        while True:
            try:
                event = self._next_event(stdout, stderr)
            except OutputGap as gap:
                self._notices.say(f"some output is lost ({gap.lost_bytes or 'an unknown number of'} bytes)")
                continue
            if event is None:
                break
            if isinstance(event, Output):
                data = event.data if self._past is None else self._past.feed(event.data)
                (stderr if event.stream == "stderr" else stdout).write(data)
            elif isinstance(event, Exited):
                code, ended = event.code, event.ended
            if event.seq + 1 >= self._process.began_before:
                self._end_past(stdout)
        if code == UNKNOWN_EXIT:
            return Ending(LOST, "the command ended, and the box does not know how")
        return Ending(code & 0xFF, ended=ended, is_over=True)

    def _end_past(self, stdout: Sink | LocalEcho) -> None:
        if self._past is not None:
            stdout.write(self._past.rest())
            self._past = None
        self._replayed.set()

    def _next_event(self, stdout: Sink | LocalEcho, stderr: Sink) -> Event | None:
        """Wait for the next event; meanwhile output is written where it arrives."""
        self._process.take_at_once(partial(self._rest_of, stdout, stderr))
        try:
            return self._process.next_event()
        finally:
            self._process.take_at_once(None)

    def _rest_of(self, stdout: Sink | LocalEcho, stderr: Sink, output: Output) -> Output | None:
        """Write output without waiting; return what is left of it."""
        if not self._replayed.is_set():
            return output
        written = (stderr if output.stream == "stderr" else stdout).write_at_once(output.data)
        if written == len(output.data):
            return None
        return Output(output.seq, output.stream, output.data[written:])

    def _follow_size(self) -> None:
        assert self._manner.terminal is not None
        while True:
            self._size_changed.wait()
            self._size_changed.clear()
            size = self._manner.terminal.size()
            if size is None or (size == self._told and not self._redraw):
                continue
            if self._redraw:
                self._redraw = False
                self._replayed.wait(_REPLAY_S)
                self._forget_region()
                self._resize(size._replace(rows=max(1, size.rows - 1)))  # the same size would change nothing
                self._let_it_draw()
            if self._resize(size):
                self._told = size
            else:
                self._size_changed.set()
                gevent.sleep(_AGAIN_S)

    def _let_it_draw(self) -> None:
        """Wait until the program has drawn itself: some, as `less`, miss a second change meanwhile."""
        before = None
        for _ in range(_LOOKS):
            gevent.sleep(_LOOK_S)
            if self._process.last_seq == before:
                return
            before = self._process.last_seq

    def _forget_region(self) -> None:
        """Let all rows scroll: a program that learns of another size takes that for granted."""
        if self._echo is not None:
            self._echo.withdraw()
        try:
            os.write(1, _ALL_ROWS)
        except OSError:
            pass  # the output finds that, too
        if self._echo is not None:
            self._echo.note(_ALL_ROWS)

    def _resize(self, size: Size) -> bool:
        """Return False if the connection was lost on the way."""
        try:
            self._process.resize(size.rows, size.cols)
        except TransportClosed:
            return self._client.state is SessionState.ENDED
        except ExecServerError:
            pass  # it has ended, somebody else has taken it, or this server cannot
        else:
            self._process.writer = True
        return True

    def _follow_terminal(self, number: signal.Signals) -> None:
        terminal = self._manner.terminal
        if terminal is None or self._end.ready():
            return
        if number == signal.SIGTSTP:
            if self._echo is not None:
                self._echo.strayed()
            terminal.suspend()
            os.kill(os.getpid(), signal.SIGSTOP)  # the default action, which a handler replaces
            return
        if number == signal.SIGCONT:
            terminal.resume()
            self._redraw = True
        if self._echo is not None:
            self._echo.resized()
        self._size_changed.set()

    def _watchers(self) -> list[Any]:
        """Return started watchers; a caught signal is handled in a greenlet of its own."""
        loop = get_hub().loop
        watchers = []
        of_the_terminal = _OF_THE_TERMINAL if self._manner.terminal is not None else ()
        for number in (*not_ignored(_PASSED_ON), *of_the_terminal):
            watcher = loop.signal(number)
            watcher.start(gevent.spawn, self._take, number)
            watchers.append(watcher)
        return watchers

    def _take(self, number: signal.Signals) -> None:
        """Pass a signal on.  Without a connection, and for a second SIGTERM, it ends this program instead."""
        if number in _OF_THE_TERMINAL:
            self._follow_terminal(number)
            return
        is_end = number in (signal.SIGTERM, signal.SIGHUP)
        alone = self._client.state is not SessionState.OPEN
        reads_along = not self._process.writer
        if alone or reads_along or (is_end and (self._manner.hangs_up or self._terminated)):
            self.leave(_BY_SIGNAL + number)
            return
        self._terminated = self._terminated or is_end
        try:
            with patience(_SIGNAL_S):
                self._process.signal(_PASSED_ON[number])
        except ExecServerError:
            # A server of the contract knows no other signal than `interrupt`, and a frozen one answers none.
            self.ask_to_end(Ending(_BY_SIGNAL + number))
        if number == signal.SIGHUP:
            self.ask_to_end(Ending(_BY_SIGNAL + number))  # the terminal is gone


def _local_echo(manner: Manner) -> LocalEcho | None:
    if manner.terminal is None or manner.predict is Predict.NEVER or not os.isatty(1):
        return None
    if os.environ.get("TERM", "dumb").startswith(_CANNOT_TAKE_BACK):
        return None
    from execserver.box.keys.local_echo import LocalEcho  # late: most commands have no terminal

    return LocalEcho(manner.terminal.size, manner.predict)


def _past() -> Past:
    from execserver.box.commands.past import Past  # late: only who comes back needs it

    return Past()


def _ignore(is_back: bool) -> None:
    pass
