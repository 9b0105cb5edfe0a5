"""Plays the end that answers wrappers, by hand: bytes and descriptors as the contract has them."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOCKET_VARIABLE = "CODEX_ESCALATE_SOCKET"
LIMIT_S = 20.0
_LENGTH = struct.Struct("<I")
_MAX_FDS = 32


def frame(message: object) -> bytes:
    """Return a message, or text that is JSON already, as a frame."""
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return _LENGTH.pack(len(text)) + text


class Session:
    """One wrapper's stream, and what it asked."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        stream.settimeout(LIMIT_S)
        text, self.descriptors = self.receive_text()
        self.request: dict[str, Any] = json.loads(text)

    def send(self, message: object) -> None:
        """Send one message."""
        self.stream.sendall(frame(message))

    def receive_text(self) -> tuple[bytes, list[int]]:
        """Return the next frame's text and the descriptors that came with its first byte."""
        head, descriptors, _, _ = socket.recv_fds(self.stream, _LENGTH.size, _MAX_FDS)
        head += self._exactly(_LENGTH.size - len(head))
        return self._exactly(_LENGTH.unpack(head)[0]), descriptors

    def close(self) -> None:
        """Close the stream and what came with the request."""
        self.stream.close()
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.stream.recv(size - len(data))
            assert piece, "the wrapper ended in the middle of a frame"
            data += piece
        return data


class WrapperPeer:
    """The socket that wrappers inherit, and its other end."""

    def __init__(self, kind: int = socket.SOCK_SEQPACKET) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, kind)
        self.ours.settimeout(LIMIT_S)

    def start(
        self,
        command: Sequence[str | Path],
        *argv: str | bytes,
        env: dict[bytes, bytes] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a wrapper with the arguments FILE ARGV..., by default with an environment of little else."""
        variables = {
            b"PATH": b"/usr/bin:/bin",
            SOCKET_VARIABLE.encode(): str(self.theirs.fileno()).encode(),
            **(env or {}),
        }
        return subprocess.Popen(
            [*command, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            cwd=cwd,
            pass_fds=(self.theirs.fileno(), *pass_fds),
        )

    def accept(self) -> Session:
        """Wait for a wrapper; return its session."""
        data, descriptors, _, _ = socket.recv_fds(self.ours, 8192, _MAX_FDS)
        assert data == b"\0"
        (stream,) = descriptors
        return Session(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, stream))

    def close(self) -> None:
        """Close both ends."""
        self.ours.close()
        self.theirs.close()

    def __enter__(self) -> WrapperPeer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
