"""The engine as the parts of a relay use it: connected again by itself, asked with a time limit.

While there is no connection a call fails at once with EngineSilent, so that nothing piles up.  A call that
was under way when the connection was lost may have been carried out: every step may be done again, but for
the use of an authorization, which then counts as used.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from hashlib import sha1

from gevent import Greenlet, sleep, spawn

from execserver.relay.engine.connection import Connection
from execserver.relay.engine.line import Dialer
from execserver.relay.engine.resp import Command, Failure, Reply, Word
from execserver.relay.errors import CannotServe, EngineSilent

_log = logging.getLogger(__name__)

ANSWER_S = 2.0  # for one call; then the connection is given up
_LOOK_S = 0.25
_PAUSE_S = (0.1, 1.0)  # between two attempts to connect: the first, and the longest
# The engine is there, and not what it was: another one may be the primary now.
_NOT_PRIMARY = frozenset({"READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED", "CLUSTERDOWN"})


class EngineRefused(CannotServe):
    """The engine answered with an error: a value of another kind, no right, no memory."""


class Script:
    """A Lua script: one step of several reads and writes, which nothing comes between."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()

    def on(self, keys: tuple[str, ...], *words: Word) -> Command:
        """Return the command that runs it on some keys."""
        return ("EVALSHA", self.sha, len(keys), *keys, *words)


class Engine:
    """One engine, over one connection at a time; callbacks must not block."""

    def __init__(
        self,
        dialer: Dialer,
        scripts: tuple[Script, ...],
        count: Callable[[str], None],
    ) -> None:
        """`count` is called with the result of each call."""
        self.on_connected: Callable[[], None] = lambda: None  # called after each connection but the first
        self._dialer = dialer
        self._load: list[Command] = [("SCRIPT", "LOAD", script.text) for script in scripts]
        self._count = count
        self._connection: Connection | None = None
        self._keeper: Greenlet[[], None] | None = None

    @property
    def is_connected(self) -> bool:
        """True while calls have a chance."""
        return self._connection is not None and not self._connection.ended.is_set()

    @property
    def waiting(self) -> int:
        """The number of calls that wait."""
        return self._connection.waiting if self._connection is not None else 0

    def start(self) -> None:
        """Connect, and stay connected from then on.  Raises CannotServe if the first attempt fails."""
        self._connect()
        self._keeper = spawn(self._keep)

    def close(self) -> None:
        """End the connection, and wait until nothing is left of it."""
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper = None  # its end holds its frames, which hold this
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, *commands: Command) -> list[Reply]:
        """Return the replies to some commands.  Raises EngineSilent, and EngineRefused for an error."""
        replies = self.ask(*commands)
        for reply in replies:
            if isinstance(reply, Failure):
                raise EngineRefused(f"the engine: {reply.text}")
        return replies

    def ask(self, *commands: Command) -> list[Reply]:
        """Return the replies to some commands, errors among them.  Raises EngineSilent."""
        connection = self._connection
        try:
            if connection is None:
                raise EngineSilent("there is no connection to the engine")
            replies = connection.call(commands)
            if any(isinstance(reply, Failure) and reply.code == "NOSCRIPT" for reply in replies):
                replies = self._call_again(connection, commands, replies)
        except EngineSilent:
            self._count("silent")
            raise
        self._look_at(connection, replies)
        return replies

    def _call_again(
        self, connection: Connection, commands: tuple[Command, ...], replies: list[Reply]
    ) -> list[Reply]:
        """Load the scripts, which somebody has flushed, and repeat those commands that were not run."""
        connection.call(self._load)
        lost = [at for at, reply in enumerate(replies) if isinstance(reply, Failure)]
        for at, reply in zip(lost, connection.call([commands[at] for at in lost]), strict=True):
            replies[at] = reply
        return replies

    def _look_at(self, connection: Connection, replies: list[Reply]) -> None:
        failures = [reply for reply in replies if isinstance(reply, Failure)]
        self._count("error" if failures else "ok")
        for failure in failures:
            if failure.code in _NOT_PRIMARY:
                connection.end(f"the engine: {failure.text}")
                raise EngineSilent(f"the engine: {failure.text}")

    def _connect(self) -> None:
        connection = Connection(self._dialer.dial())
        self._connection = connection
        watch = spawn(self._watch, connection)
        try:
            for reply in connection.call(self._load):
                if isinstance(reply, Failure):
                    raise EngineRefused(f"the engine does not take the relay's scripts: {reply.text}")
        except CannotServe:
            connection.end("the engine is not ready")
            watch.join()
            raise

    def _watch(self, connection: Connection) -> None:
        while not connection.ended.wait(_LOOK_S):
            if connection.is_overdue(ANSWER_S):
                connection.end(f"the engine did not answer within {ANSWER_S:g} s")

    def _keep(self) -> None:
        first, longest = _PAUSE_S
        while True:
            connection = self._connection
            if connection is not None:
                connection.ended.wait()
                _log.warning("the engine is gone: %s", connection.ended_because)
                self._connection = None
            pause, told = first, ""
            while self._connection is None or self._connection.ended.is_set():
                try:
                    self._connect()
                except CannotServe as error:
                    if str(error) != told:  # an outage may take hours
                        told = str(error)
                        _log.warning("no connection to the engine: %s", told)
                    # At random, since all nodes lose it at the same time.
                    sleep(pause * (0.5 + random.random() / 2))
                    pause = min(pause * 2, longest)
            _log.info("connected to the engine: %s", self._dialer.address.shown)
            self.on_connected()
