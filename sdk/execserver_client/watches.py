"""Watched directories: batches of changes, which go on over a lost connection.

A batch with `overflow` says that some changes are lost, since nobody took them or too many came at once: look
again.  `batch_log` has the rules.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from execserver.client.errors import ExecServerError, WaitTimeout
from execserver.client.greenlets.router import Router
from execserver.client.operations import watches as asking
from execserver.client.rules.batch_log import BatchLog
from execserver.client.rules.wire import RemotePath
from execserver.protocol.file_watches import FsChangesNotification, FsWatchParams, FsWatchResponse
from execserver.protocol.files import FsWalkError
from execserver_client._driving import adrive
from execserver_client._errands import Errands
from execserver_client._flow import Gate
from execserver_client._opening import Opening
from execserver_client._session import Session
from execserver_client.sandbox import AnySandbox, context_of


class _Following:
    """What gets the batches of one watch, and what its reader waits at."""

    def __init__(self, session: Session, gate: Gate, watch_id: str) -> None:
        self.watch_id = watch_id
        self.log = BatchLog()
        self._session = session
        self._gate = gate
        self._stirred = asyncio.Event()

    async def settled(self) -> None:
        """Wait until the log has something to return or to raise."""
        while not self.log.settled:
            self._stirred.clear()
            with self._gate.waiting():
                await self._stirred.wait()

    def close(self) -> None:
        """Take no more."""
        self.log.close()
        self._stirred.set()

    def deliver(self, batch: FsChangesNotification) -> None:
        """Take a batch; one that comes twice, or too early after a lost connection, is left out."""
        self.log.add(batch)
        self._stirred.set()

    async def resume(self) -> None:
        """Ask for what has not arrived, on a new connection."""
        error = await adrive(self._session, asking.resume(self.watch_id, self.log))
        if error is not None:
            self.fail(error)

    def fail(self, error: ExecServerError) -> None:
        """End with an error; what has come can still be taken."""
        self.log.fail(error)
        self._stirred.set()

    async def unwatch(self) -> None:
        """Tell the server that the watch is over."""
        await adrive(self._session, asking.unwatch(self.watch_id))


class FileWatch:
    """A watched directory: an asynchronous iterator over batches of changes.

    `folders` is how many directories were watched at first, `errors` are those that could not be.  With
    `local` False other machines may change files without anybody being told.  Iterating ends when the watch
    is closed, or when it has ended by itself, after a batch with `ended` and the reason; it raises what ended
    the session.
    """

    def __init__(
        self, following: _Following, router: Router, errands: Errands, found: FsWatchResponse
    ) -> None:
        """Use `Files.watch` instead."""
        self.folders: int = found.folders
        self.local: bool = found.local
        self.errors: tuple[FsWalkError, ...] = found.errors
        self._following = following
        self._router = router
        self._errands = errands

    async def next_batch(self, timeout: float | None = None) -> FsChangesNotification | None:
        """Return the next batch; None when the watch is over.  Raises `WaitTimeout` after so many seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._following.settled()
        except TimeoutError:
            raise WaitTimeout(f"nothing has changed for {timeout:g} s") from None
        return self._following.log.take()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FsChangesNotification:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """End the watch.  May be called again."""
        self._following.close()
        if self._router.watches.pop(self._following.watch_id, None) is not None:
            await self._errands.finish(self._following.unwatch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def watch(
    session: Session,
    gate: Gate,
    router: Router,
    errands: Errands,
    path: RemotePath,
    *,
    recursive: bool = True,
    coalesce: float = 0.1,
    sandbox: AnySandbox = None,
) -> Opening[FileWatch]:
    """Watch a directory and all below it; `Files.watch` calls it.

    Changes are collected for `coalesce` seconds, at most 10.  When this has been awaited everything is
    watched.  Raises `RequestFailed`, with the cure where a limit is reached, or `UnsupportedByServer`.
    """
    params = asking.watch_params(
        path, recursive=recursive, coalesce=coalesce, sandbox=context_of(sandbox, path)
    )
    return Opening(_opened(_Following(session, gate, params.watch_id), session, router, errands, params))


async def _opened(
    following: _Following, session: Session, router: Router, errands: Errands, params: FsWatchParams
) -> FileWatch:
    asking.require(session.extensions)
    # Before the request: the first batch may overtake its answer.
    router.watches[following.watch_id] = following
    try:
        found = await errands.opened(lambda: adrive(session, asking.watch(params)), following.unwatch)
    except BaseException:
        router.watches.pop(following.watch_id, None)
        raise
    return FileWatch(following, router, errands, found)
