"""Nothing of forwarded ports and watches is left for the garbage collector once their session has ended."""

from __future__ import annotations

from pathlib import Path

import gevent
from gevent import socket

from tests.handlers.asking import Client, Server
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


def test_watches_are_freed_with_their_session_or_before(handlers_server: Server, tmp_path: Path) -> None:
    def life(number: int) -> None:
        root = tmp_path / f"{number}"
        for name in ("a", "b/c", "removed"):
            (root / name).mkdir(parents=True)
        client = client_of(handlers_server)
        for watch_id, path in (("w", root), ("v", root / "b"), ("r", root / "removed")):
            client.ask("fs/watch", watchId=watch_id, path=str(path), coalesceMs=0)
        (root / "a" / "f").write_bytes(b"")
        (root / "removed").rmdir()
        wait_until(lambda: _told(client) >= {"w", "r"}, 20.0, pause=gevent.sleep)
        client.ask("fs/unwatch", watchId="v")
        client.ask("session/keep", keepMs=0)
        client.leave()
        turns()

    assert_freed(life, LIVES)


def _told(client: Client) -> set[str]:
    return {note["watchId"] for note in heard(client, "fs/changes")}
