"""At which ports of a sandbox's own network somebody listens."""

from __future__ import annotations

import pytest

from execserver.sandbox.proxy.routes import HTTP_PORT, SOCKS_PORT
from execserver.zygote.confine import routing

SERVERS = (
    b"http_proxy=http://127.0.0.1:%d" % HTTP_PORT,
    b"all_proxy=socks5h://127.0.0.1:%d" % SOCKS_PORT,
)


@pytest.mark.parametrize(
    ("env", "ports"),
    [
        (SERVERS, [HTTP_PORT, SOCKS_PORT]),
        (SERVERS[1:], [SOCKS_PORT]),
        ((*SERVERS, b"Pip_Proxy=http://127.0.0.1:8080", b"ws_proxy=localhost"), [HTTP_PORT, SOCKS_PORT]),
    ],
)
def test_where_the_server_accepts_only_its_own_ports_are_listened_at(
    env: tuple[bytes, ...], ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(routing, "pass_listeners", lambda channel, ports: passed.append((channel, ports)))
    routing.to_server(env, 7).listen()
    assert passed == [(7, ports)]
