from __future__ import annotations

import pytest

from execserver.core.connection import ConnectionPhase
from execserver.protocol.errors import InvalidParams
from execserver.protocol.methods import METHODS
from tests.handlers.asking import Client, Server

FAMILIES = {
    "process/read": "exec",
    "command/exec": "exec",
    "environment/info": "environment info",
    "fs/readFile": "filesystem",
    "http/request": "http",
}
# The least each needs to be decoded.
PARAMS: dict[str, dict[str, object]] = {
    "process/read": {"processId": "p"},
    "command/exec": {"processId": "p", "argv": ["x"], "cwd": "/", "env": {}, "tty": False},
    "environment/info": {},
    "fs/readFile": {"path": "file:///x"},
    "http/request": {"method": "GET", "url": "http://x", "requestId": "r"},
}


def put_into(client: Client, phase: ConnectionPhase) -> None:
    """Bring a connection as far as that."""
    rules = client.connection.rules
    rules.phase = phase


@pytest.mark.parametrize("method", sorted(FAMILIES))
def test_methods_wait_for_the_greeting(handlers_server: Server, method: str) -> None:
    client = Client(handlers_server, ready=False)
    family = FAMILIES[method]
    refusal = f"client must call initialize before using {family} methods"
    assert client.ask(method, **PARAMS[method]) == (-32600, refusal)
    assert "sessionId" in client.ask("initialize", clientName="x")
    refusal = f"client must send initialized before using {family} methods"
    assert client.ask(method, **PARAMS[method]) == (-32600, refusal)


@pytest.mark.parametrize("phase", ConnectionPhase)
def test_params_are_decoded_before_the_greeting_is_looked_at(
    handlers_server: Server, phase: ConnectionPhase
) -> None:
    client = Client(handlers_server, ready=False)
    put_into(client, phase)
    assert client.ask("process/read") == (-32602, "missing field `processId`")
    code, text = client.ask("initialize", clientName=5)
    assert (code, text.partition(" (")[0]) == (-32602, "invalid type: number, expected a string")


@pytest.mark.parametrize("phase", ConnectionPhase)
@pytest.mark.parametrize("method", ["no/such", "", "initialized", "process/output", "PROCESS/READ"])
def test_an_unknown_method_is_that_in_any_state(
    handlers_server: Server, phase: ConnectionPhase, method: str
) -> None:
    client = Client(handlers_server, ready=False)
    put_into(client, phase)
    text = f"exec-server stub does not implement `{method}` yet"
    assert client.ask(method, anything=1) == (-32601, text)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_can_be_reached(asking: Client, method: str) -> None:
    """With params that cannot be decoded, so that nothing is done."""
    with pytest.raises(InvalidParams, match="invalid type"):
        asking.answer(method, "not an object")


def test_the_greeting_is_not_a_matter_of_state(handlers_server: Server) -> None:
    client = Client(handlers_server, ready=False)
    assert "sessionId" in client.ask("initialize", clientName="x")
