"""Runs an executor until it is killed or until a fatal error, which is held for whoever started it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gevent import GreenletExit

from execserver.remote.errors import RemoteError


class Executor(Protocol):
    """What serves for ever over a registry's WebSocket."""

    def run(self) -> None:
        """Serve for ever.  Raises RemoteError when that cannot go on."""

    def close(self) -> None:
        """End all streams in order."""


class Running:
    """One executor that runs; `failure` says why it ended, None if a signal ended it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.failure: RemoteError | None = None

    def run(self, ended: Callable[[], object]) -> None:
        """Serve until killed or until a fatal error, which `failure` then holds."""
        # Stays if `run` ends in any other way than those below.
        self.failure = RemoteError("remote mode ended by a mistake of this program")
        try:
            self._executor.run()
        except RemoteError as error:
            self.failure = error
        except GreenletExit:
            self.failure = None
        finally:
            ended()

    def close(self) -> None:
        """End all streams in order."""
        self._executor.close()
