"""Stdin of an executor that gets its credential there: read in the event loop, a piece at a time.

The credential is waited for once, and read on afterwards: a later frame replaces it, and a wrong one ends the
program.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from gevent import Timeout, get_hub
from gevent.event import Event

from execserver.remote.auth.kinds import Auth
from execserver.remote.auth.stdin_credentials import StdinCredential
from execserver.remote.errors import RemoteError, SignInError

if TYPE_CHECKING:
    from execserver.handover.records import PackedInputCredential

FIRST_FRAME_S = 30.0
_PIECE_BYTES = 64 * 1024
_PIECES_AT_ONCE = 16  # what is written together with its end is seen together with it
_NOT_IN_TIME = "timed out waiting for the initial exec-server executor credential"
_CLOSED = "exec-server executor credential pipe closed"


class CredentialInput:
    """Reads `credential` from a descriptor, which stays the caller's until `close`.

    `leave` is called when the program is to end: because the input has, where that counts, or because of
    `failure`.
    """

    def __init__(
        self,
        descriptor: int,
        credential: StdinCredential,
        leave: Callable[[], object],
        *,
        ends_with_stdin: bool = False,
    ) -> None:
        self.failure: RemoteError | None = None
        self._descriptor = descriptor
        self._credential = credential
        self._leave = leave
        self._ends = ends_with_stdin or credential.ends_with_input
        self._is_over = False
        self._is_used = False
        self._turn = Event()
        self._watcher = get_hub().loop.io(descriptor, 1)
        self._watcher.start(self._read)

    def wait(self) -> Auth:
        """Return what signs requests, once it has come.  Raises RemoteError when it does not."""
        limit_s = FIRST_FRAME_S if self._credential.ends_with_input else None
        with Timeout.start_new(limit_s) as limit:
            try:
                self._await_first()
            except Timeout as expired:
                if expired is not limit:
                    raise
        if self.failure is not None:
            raise self.failure
        if self._credential.auth is None:
            raise SignInError(_NOT_IN_TIME)
        self._is_used = True
        return self._credential.auth

    def _await_first(self) -> None:
        while self._credential.auth is None and self.failure is None:
            self._turn.clear()
            self._turn.wait()

    def pack(self) -> PackedInputCredential:
        """Return what a new credential is restored from, before it is read on for."""
        return self._credential.pack()

    def close(self) -> None:
        """Read no more; may be called again."""
        self._watcher.stop()
        self._watcher.close()

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        try:
            for _ in range(_PIECES_AT_ONCE):
                if not self._take():
                    self._end()
                    return
                if not poll.poll(0):
                    break
        except SignInError as error:
            self._fail(error)
            return
        self._turn.set()

    def _take(self) -> bool:
        """Read a piece; return False at the end of the input."""
        try:
            data = os.read(self._descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if data:
            self._credential.feed(data)
        return bool(data)

    def _end(self) -> None:
        self._watcher.stop()
        self._credential.end()
        if self._credential.ends_with_input and not self._is_used:
            raise SignInError(_CLOSED)
        self._turn.set()
        if self._ends:
            self._leave()

    def _fail(self, error: SignInError) -> None:
        self._watcher.stop()
        self.failure = error
        self._turn.set()
        if self._is_used:
            self._leave()


def is_pipe_or_socket(descriptor: int) -> bool:
    """Tell whether somebody at the other end can write to a descriptor, and no file keeps what comes."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
