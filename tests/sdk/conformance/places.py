"""Where the scenes are played: a server and an executor behind a relay, both behind a proxy that can cut."""

from __future__ import annotations

from typing import Protocol

from tests.sdk.relay_scene import RelayScene
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_process import ServerProcess


class Place(Protocol):
    """A machine; `box` and `token` lead to it.  `keeps_streams`: a cut is no loss to who is connected."""

    box: str
    token: str | None
    keeps_streams: bool

    def cut(self) -> None:
        """Reset all connections to it."""

    def close(self) -> None:
        """End it."""


class Direct:
    """A server that listens for WebSockets."""

    keeps_streams = False

    def __init__(self) -> None:
        self._server = ServerProcess()
        self._way = CuttingProxy(self._server.url)
        self.token: str | None = None
        self.box = self._way.url

    def cut(self) -> None:
        """See `Place`."""
        self._way.cut()

    def close(self) -> None:
        """See `Place`."""
        self._way.stop()
        self._server.stop()
        self._server.release()


class Relayed:
    """An executor that is registered at a relay."""

    keeps_streams = True

    def __init__(self, scene: RelayScene) -> None:
        self._scene = scene
        self.token: str | None = self._scene.token
        self.box = self._scene.box

    def cut(self) -> None:
        """See `Place`."""
        self._scene.way.cut()

    def close(self) -> None:
        """See `Place`; the scene is left to its owner."""
        self.cut()
