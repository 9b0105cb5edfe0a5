"""Two relays that share an engine, each asked directly: what a balancer would do, the test does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

from execserver.relay.engine.tokens import EngineTokens
from execserver.relay.tokens import BOTH, new_token
from tests.support.engine_process import EngineProcess
from tests.support.relay_process import ENVIRONMENT, Json, Peer, Refused, RelayProcess
from tests.support.waiting import wait_until

LIMITS: Json = {
    "connect_wait_s": 1.0,
    "drain_s": 1.0,
    "close_timeout_s": 0.5,
    "balancer_s": 0.2,
    "lease_s": 10.0,  # no machine is so busy that a node that beats loses it
    "beat_s": 0.2,
    "away_s": 0.5,
}


class Nodes(ExitStack):
    """An engine and some relays."""

    def __init__(self, engine: EngineProcess) -> None:
        super().__init__()
        self.engine = engine
        self.environment = ENVIRONMENT  # of the test that runs
        self._client = engine.connected()
        self.callback(self._client.close)
        self.tokens = EngineTokens(self._client)

    def relay(self, name: str, *words: str, **limits: float) -> RelayProcess:
        """Start a relay, which the caller ends."""
        words = ("--node", name, "--log-level", "debug", *words)
        return RelayProcess(*words, limits={**LIMITS, **limits}, engine=self.engine.url)

    def add(self, name: str, *words: str, **limits: float) -> RelayProcess:
        """Start a relay that ends with the others."""
        return self.enter_context(self.relay(name, *words, **limits))

    def token(self, environment_id: str = ENVIRONMENT, role: str = BOTH) -> str:
        """Make a token, which every node knows at once."""
        token, text = new_token(environment_id, role)
        self.tokens.add(token)
        return text

    def revoke(self, text: str) -> None:
        """Revoke a token."""
        removed, _ = self.tokens.revoke(text.split("-")[1])
        assert removed

    def key(self, name: str) -> bytes:
        """Return the beginning of what the engine holds at a key, as it is on the wire."""
        return self.engine.ask("GET", name)

    def wait_for_presence(self, node: str, environment_id: str = ENVIRONMENT) -> None:
        """Wait until the engine knows that an executor is at a node."""
        wait_until(lambda: f"\n{node}:".encode() in self.key(f"p:{{{environment_id}}}"))


def at(relay: RelayProcess, url: str) -> str:
    """Return a rendezvous URL as it leads to one node."""
    return url.replace(urlsplit(url).netloc, f"127.0.0.1:{relay.port}")


def refusal(act: Callable[[], Peer]) -> Refused:
    """Return why a websocket is refused."""
    try:
        act().close()
    except Refused as refused:
        return refused
    raise AssertionError("it was let in")
