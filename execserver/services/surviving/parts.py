"""What a server with --survive-crash is put together from, and its line to the keeper."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from gevent.hub import get_hub

from execserver.service_manager import ServiceManager
from execserver.services.surviving.sessions import SurvivingSessions
from execserver.services.surviving.spawner import SurvivingSpawner
from execserver.survival.ledger import HEAD
from execserver.survival.records import VERSION, Head

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from execserver.survival.keeping import Keeping
    from execserver.unix_socket import BoundFile

_log = logging.getLogger(__name__)
_READ = 1


class Survival:
    """The parts of one server that write down what they do."""

    WHY_NOT_UPGRADED = (
        "a server with --survive-crash is not upgraded in place: what it runs from must stay the same"
    )

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._watcher: Any = None
        # In the places of `Spawner`, `SessionHost` and `ServiceManager`.
        self.classes = (
            partial(SurvivingSpawner, keeping),
            partial(SurvivingSessions, keeping),
            partial(_KeptManager, keeping),
        )

    def publish(
        self,
        sock: socket.socket,
        metrics: socket.socket | None,
        file: BoundFile | None,
        soft_nofile: int,
    ) -> None:
        """Let what this server has be what one behind it goes on with."""
        sockets = [sock, *([] if metrics is None else [metrics])]
        keys = self._keeping.hold([each.fileno() for each in sockets])
        place = None if file is None else (file.path, file.device, file.inode)
        head = Head(VERSION, soft_nofile, keys[0], keys[1] if len(keys) > 1 else None, place)
        self._keeping.ledger.put(HEAD, msgspec.msgpack.encode(head))
        self._keeping.publish()

    def ready(self, stop: Callable[[], object]) -> None:
        """Say that the server serves; call `stop` when the keeper is gone."""

        def lost() -> None:
            _log.error("the keeper of this server has ended; everything is ended now")
            stop()

        self._watcher = get_hub().loop.io(self._keeping.fd, _READ)
        self._watcher.start(self._lost)
        self._keeping.ready(lost)

    def _lost(self) -> None:
        self._watcher.stop()  # the end of a socket can be read for ever
        self._keeping.lost()


class _KeptManager(ServiceManager):
    """A service manager that is told by the keeper, whose pid it knows."""

    def __init__(self, keeping: Keeping, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self._keeping = keeping

    def tell(self, *states: str) -> None:
        """See `ServiceManager`."""
        if self._address:
            self._keeping.tell("\n".join(states).encode())
