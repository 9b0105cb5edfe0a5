"""The files of a server, over a session that notes what is called."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from execserver.protocol.environment import EnvironmentInfo, Extensions
from execserver.protocol.paths import PathUri
from execserver_client._session import Session
from execserver_client.files import Files
from tests.sdk.parts import connect
from tests.sdk.support import run_async


class Watched:
    """A session; `made` are the methods called, and while `let_through` is not set nobody gets an answer.

    `environment_info` may be changed, as if the server had said something else of itself.
    """

    def __init__(self, session: Session) -> None:
        self.environment_info: EnvironmentInfo | None = session.environment_info
        self.made: list[str] = []
        self.let_through = asyncio.Event()
        self.let_through.set()
        self.session = session

    @property
    def extensions(self) -> Extensions:
        """Those of `environment_info`."""
        info = self.environment_info
        return Extensions() if info is None or info.execserver is None else info.execserver

    async def call(self, method: Any, params: Any, **options: Any) -> Any:
        """Call a method."""
        self.made.append(method.name)
        answer = await self.session.call(method, params, **options)
        await self.let_through.wait()
        return answer


def on(url: str, scene: Callable[[Files, Watched], Awaitable[None]], home: Path | None = None) -> None:
    """Let a scene play with the files of a server; nothing may be left of it."""

    async def play() -> None:
        async with connect(url) as client:
            session: Any = Watched(client.session)
            folder = None if home is None else PathUri.from_native(os.fsencode(home))
            files = Files(session, client.gate, client.router, client.errands, folder)
            await scene(files, session)
            await asyncio.get_running_loop().shutdown_default_executor()

    run_async(play())
