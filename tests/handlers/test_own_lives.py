"""Nothing of forwarded ports is left for the garbage collector once their session has ended."""

from __future__ import annotations

import gevent
from gevent import socket

from tests.handlers.asking import Server
from tests.handlers.test_watching import client_of, heard
from tests.support.greenlets import turns
from tests.support.lives import assert_freed
from tests.support.waiting import wait_until

LIVES = 10


def test_ports_are_freed_with_their_session(handlers_server: Server) -> None:
    def life(_: int) -> None:
        with socket.socket() as there:
            there.bind(("127.0.0.1", 0))
            there.listen()
            client = client_of(handlers_server)
            client.ask("port/open", portId="a", host="127.0.0.1", port=there.getsockname()[1])
            far, _ = there.accept()
            far.sendall(b"x")
            wait_until(lambda: bool(heard(client, "port/bytes")), 20.0, pause=gevent.sleep)
            far.close()
            listening = client.ask("port/listen", portId="l", host="127.0.0.1", port=0)["address"]["port"]
            with socket.create_connection(("127.0.0.1", listening)):
                pass
            client.ask("session/keep", keepMs=0)
            client.leave()
            turns()

    assert_freed(life, LIVES)
