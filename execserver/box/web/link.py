"""The connection to one box, shared by all browsers, and made when it is first needed.

What runs in its session ends with it.  A lost connection is resumed; when that has failed, the next call
connects anew.  A call has 30 s; the limits of unread bytes are small, since output is always taken at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import gevent
from gevent.lock import Semaphore

from execserver.box.commands.kept import DETACHED_MS, SHELL_MS
from execserver.box.connecting import Box, connect
from execserver.box.web.failing import BUSY, TIMEOUT, CallFailed, of_client, of_leave
from execserver.client.errors import ExecServerError
from execserver.client.options import MIB, ExecServerClientConnectOptions
from execserver.client.rules.recovery import SessionState
from execserver.leaving import Leave

if TYPE_CHECKING:
    from execserver.box.web.terminals import Terminal
    from execserver.client.client import ExecServerClient

CALL_S: Final = 30.0
CONNECT_S: Final = 40.0
_AT_ONCE: Final = 128  # calls to one box; more are refused, since it does not answer
# Nobody is asked for a password in the middle of a console.
_SSH_OPTIONS: Final = ("-oBatchMode=yes", "-oConnectTimeout=10")

Tell = Callable[..., None]


class Link:
    """One box.  `tell` sends an event to every browser."""

    def __init__(self, box: Box, tell: Tell) -> None:
        self.box = box
        self.terminals: dict[str, Terminal] = {}  # by process id
        self.version: str | None = None
        self.sandbox: str | None = None
        self._tell = tell
        self._client: ExecServerClient | None = None
        self._connecting = Semaphore()
        self._calls = 0
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that works, or is being resumed."""
        return self._client is not None and self._client.state is not SessionState.ENDED

    def open(self, *, may_ask: bool = False) -> ExecServerClient:
        """Return the client, connected.  Raises ExecServerError; `may_ask`: ssh may ask for a password."""
        with self._connecting:
            if self._client is not None and not self.is_connected:
                self._client.close()
                self._client = None
            if self._client is None:
                if self._closed:
                    raise CallFailed("the console has ended")
                self._client = self._connect(None, () if may_ask else _SSH_OPTIONS)
                self._client.watch_connection(self._changed)
                self._tell("connection", box=self.box.name, state="connected")
            return self._client

    def open_kept(self) -> ExecServerClient:
        """Return a client with a session of its own, which stays for 24 h without it.  Raises as `open`."""
        return self._connect(DETACHED_MS, _SSH_OPTIONS)

    def _connect(self, keep_ms: int | None, ssh_options: tuple[str, ...]) -> ExecServerClient:
        options = ExecServerClientConnectOptions(
            client_name="execserver",
            keep_ms=keep_ms,
            request_timeout=CALL_S,
            resume_window=SHELL_MS / 1000 if self.box.can_resume else 0.0,
            max_in_flight=_AT_ONCE,
            max_message_bytes=16 * MIB,
            max_unread_bytes=MIB,
            max_unread_bytes_while_waiting=4 * MIB,
        )
        return connect(self.box, options, ssh_options)

    @contextmanager
    def using(self) -> Iterator[ExecServerClient]:
        """Yield the client for one call; its errors are raised as CallFailed."""
        if self._calls >= _AT_ONCE:
            raise CallFailed(f"{self._calls} calls wait for {self.box.name} already", BUSY)
        self._calls += 1
        limit = CALL_S if self.is_connected else CONNECT_S
        try:
            with gevent.Timeout(limit, CallFailed(f"no answer within {limit:g} s", TIMEOUT)):
                yield self.open()
        except ExecServerError as error:
            raise of_client(error, self.box) from None
        except Leave as leave:
            raise of_leave(leave) from None
        except OSError as error:
            raise CallFailed(f"{self.box.name}: {error.strerror or error}") from None
        finally:
            self._calls -= 1

    def answer_ms(self) -> float | None:
        """Return how long an answer takes, None without a connection.  Raises CallFailed."""
        if not self.is_connected:
            return None
        with self.using() as client:
            begun = time.monotonic()
            info = client.environment_info()
            took = time.monotonic() - begun
            own = info.execserver
            self.version = None if own is None else own.version
            if self.sandbox is None and own is not None and own.environment_sandbox:
                policies = client.environment_sandbox().policies
                names = [each.back_end for each in policies if each.name == "workspace-write"]
                self.sandbox = next(iter(names), None) or "none"
        return round(took * 1000, 1)

    def close(self) -> None:
        """End the connection, and with it what runs in its session."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            client.watch_connection(_ignore)
            client.close()

    def _changed(self, is_back: bool) -> None:
        state = "connected" if is_back else "lost" if self.is_connected else "ended"
        self._tell("connection", box=self.box.name, state=state)


def _ignore(is_back: bool) -> None:
    pass
