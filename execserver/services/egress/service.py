"""What the proxies of all processes of a server share: look-ups, upstream proxies, own ports, observers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from execserver.egress.decisions import DecisionRecord
from execserver.eventloop.workers import Workers
from execserver.http_client.connect import SocketConnector
from execserver.http_client.proxy import Proxies
from execserver.services.egress.own_ports import OwnPorts
from execserver.services.egress.peers import Peers
from execserver.services.egress.places import Places

if TYPE_CHECKING:
    from execserver.http_client.tls import Tls
    from execserver.settings import Settings

_LOOK_UPS = 32  # at a time, of all processes

# Takes the process id, the decision and when it was made (seconds since 1970), in the event loop.
Watcher = Callable[[str, DecisionRecord, float], None]


class EgressService:
    """Made with the first proxy of a server."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[bytes, bytes],
        own_address: tuple[str, int] | None,
    ) -> None:
        """`environ` names the upstream proxies; `own_address` is where the server listens, if it does."""
        self.settings = settings
        self.connector = SocketConnector(_LOOK_UPS)
        self.peers = Peers()
        self.own_ports = OwnPorts()
        # The contract's proxies do not know exceptions: whoever wants one does not allow upstream proxies.
        texts = {os.fsdecode(name): os.fsdecode(text) for name, text in environ.items()}
        self.upstream = Proxies({name: text for name, text in texts.items() if name.upper() != "NO_PROXY"})
        self.environ = environ
        self.masking_seed = os.urandom(32)  # decides which stand-ins there are
        self.has_removed_stale = False
        self._texts = texts
        self._tls: Tls | None = None
        self.watchers: list[Watcher] = []
        self.places = Places(settings.egress_connections)
        self.workers = Workers()
        if own_address is not None:
            self.own_ports.add(own_address[1])

    @property
    def tls(self) -> Tls:
        """Return what connects to hosts over TLS; made when first needed.  Raises NoTrust and OSError."""
        from execserver.http_client.tls import Tls

        if self._tls is None:
            self._tls = Tls(self._texts)
        return self._tls

    def decided(self, process_id: str, record: DecisionRecord) -> None:
        """Tell all watchers of a decision."""
        now = time.time()
        for watcher in self.watchers:
            watcher(process_id, record, now)
