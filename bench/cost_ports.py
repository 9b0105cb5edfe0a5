"""What a forwarded connection costs the server, and a MiB through one, in the binary form of messages.

A thread is at the far end of the connection.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from bench.client import Client, masked_frame

_MIB: Final = 1 << 20
_PIECE: Final = 60 * 1024  # a frame below 64 KiB, which the server takes without its library
_BINARY: Final = 2  # the opcode
_ID: Final = "port"


def down(url: str, folder: Path, times: int) -> None:
    """Have what comes from the far end."""
    with closing(_far_end(lambda peer: peer.sendall(bytes(times * _MIB)))) as far, Client(url) as client:
        _open(client, far)
        arrived = acknowledged = 0
        while arrived < times * _MIB:
            arrived += _length(client.receive())
            if arrived - acknowledged >= _MIB // 2:
                acknowledged = arrived
                client.send(
                    {"id": arrived, "method": "port/ack", "params": {"portId": _ID, "received": arrived}}
                )


def _length(message: bytes) -> int:
    """Return how many bytes of a connection a message brings: few come as text."""
    if message[:1] == b"\0":
        return len(message) - 5 - int.from_bytes(message[1:5], "big")
    return len(base64.b64decode(json.loads(message).get("params", {}).get("chunk", "")))


def up(url: str, folder: Path, times: int) -> None:
    """Send to the far end."""
    with closing(_far_end(_read_all)) as far, Client(url) as client:
        _open(client, far)
        data = bytes(_PIECE)
        for number in range(times * _MIB // _PIECE):
            params = {"portId": _ID, "offset": number * _PIECE, "chunk": ""}
            asked = {"id": number, "method": "port/data", "params": params}
            text = json.dumps(asked, separators=(",", ":")).encode()
            client.send_prepared(masked_frame(_BINARY, b"\0" + len(text).to_bytes(4, "big") + text + data))
            answer = json.loads(client.receive())
            if "result" not in answer:
                raise SystemExit(f"bench: the server does not take it: {answer}")
        client.call("port/close", {"portId": _ID})  # so that the far end sees the end now


def opened(url: str, folder: Path, times: int) -> None:
    """Connect, have a byte there and back, and close."""
    with socket.create_server(("127.0.0.1", 0)) as far, Client(url) as client:
        for number in range(times):
            port_id = f"{_ID}{number}"
            where = {"portId": port_id, "host": "127.0.0.1", "port": far.getsockname()[1]}
            client.call("port/open", {**where, "chunk": "eA=="})
            with far.accept()[0] as peer:
                peer.sendall(peer.recv(1))
                while b'"port/bytes"' not in client.receive():
                    pass
                client.call("port/close", {"portId": port_id})


def _far_end(play: Callable[[socket.socket], object]) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener.accept()[0] as peer:
            play(peer)

    threading.Thread(target=serve, daemon=True).start()
    return listener


def _read_all(peer: socket.socket) -> None:
    while peer.recv(_MIB):
        pass


def _open(client: Client, far: socket.socket) -> None:
    client.call(
        "port/open", {"portId": _ID, "host": "127.0.0.1", "port": far.getsockname()[1], "binary": True}
    )
