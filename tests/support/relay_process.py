"""Starts our relay as a process of its own, and speaks to it as a scripted executor or harness.

A `RelayProcess` owns its child and a folder for its tokens, and ends the child by pid. The scripted ends know
frames and JSON only: no Noise is needed to test what routes ciphertext.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from execserver.wire.relay_frames import Body, RelayFrame, decode_frame, encode_frame
from tests.support.server_process import PROGRAM_VARIABLE, base_environment, interrupts_not_ignored

WAIT = 20.0
LIMITS_VARIABLE = "EXECSERVER_RELAY_LIMITS"
ENVIRONMENT = "box-1"

Json = dict[str, Any]


def program() -> list[str]:
    """Return the words that start ours: the built file where one is named, else the source."""
    built = os.environ.get(PROGRAM_VARIABLE)
    return [built] if built else [sys.executable, "-m", "execserver"]


def key_object(seed: int = 0) -> Json:
    """Return a key object that differs for every seed; nobody computes with it."""
    return {
        "suite": "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256",
        "x25519_public_key": base64.b64encode(seed.to_bytes(32, "big")).decode(),
        "mlkem768_public_key": base64.b64encode(bytes(1184)).decode(),
    }


class RelayProcess:
    """A running relay with tokens of the test's own."""

    def __init__(
        self,
        *words: str,
        listen: str = "http://127.0.0.1:0",
        limits: Json | None = None,
        folder: Path | None = None,
        env: dict[str, str] | None = None,
        engine: str | None = None,
    ) -> None:
        """Start it and wait for its URL; with a `folder` its files are there and stay.

        With the URL of an `engine` that has the tokens; whoever uses it makes them there.
        """
        self.tls: ssl.SSLContext | None = None  # what the test trusts, for https
        self._own_folder = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="relay-")) if folder is None else folder
        self.token_file = self.folder / "tokens.json"
        if not self.token_file.exists():
            self.token_file.write_text('{"tokens": []}\n')
            self.token_file.chmod(0o600)
        self._errors = (self.folder / f"stderr-{time.monotonic_ns()}").open("w+b")
        variables = {**base_environment(), **(env or {})}
        if limits:
            variables[LIMITS_VARIABLE] = json.dumps(limits)
        tokens = ["--token-file", str(self.token_file)] if engine is None else ["--engine", engine]
        command = [*program(), "relay", "--listen", listen, *tokens, *words]
        with interrupts_not_ignored():
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=self._errors, env=variables, bufsize=0
            )
        try:
            self.url = self._read_url()
        except BaseException:
            self.kill()
            raise

    def _read_url(self) -> str:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], WAIT)[0]:
            raise AssertionError(f"no URL; stderr: {self.errors()}")
        line = self.process.stdout.readline().decode().strip()
        if not line.startswith("http"):
            raise AssertionError(f"{line!r} instead of a URL; stderr: {self.errors()}")
        return line

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def port(self) -> int:
        """Its port."""
        return int(urlsplit(self.url).port or 0)

    def errors(self) -> str:
        """Return what it has written to stderr so far."""
        self._errors.flush()
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def token(self, environment_id: str = ENVIRONMENT, role: str = "both") -> str:
        """Make a token; the relay notices within its time for that, or at once when it is told to."""
        from execserver.relay import tokens

        _, text = tokens.create(str(self.token_file), environment_id, role)
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + WAIT
        # A token the relay knows is refused for another environment, one it does not know is not a token.
        while self.call("x", "validate", {}, text)[0] == 401:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return text

    def call(
        self, environment_id: str, name: str, body: object, token: str | None, **headers: str
    ) -> tuple[int, Json]:
        """Make a registry call; return status and JSON."""
        path = f"/cloud/environment/{environment_id}/{name}"
        given = {"content-type": "application/json", **headers}
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        status, _, data = self.request("POST", path, json.dumps(body).encode(), given)
        return status, json.loads(data)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Make an HTTP request."""
        connection = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
            if self.tls is None
            else http.client.HTTPSConnection("127.0.0.1", self.port, timeout=WAIT, context=self.tls)
        )
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """Return a figure of the metrics page by its full name with labels; 0 where it is not there yet."""
        _, _, page = self.request("GET", "/metrics")
        for line in page.decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def register(self, token: str, seed: int = 0, environment_id: str = ENVIRONMENT) -> Json:
        """Register an executor; return the answer."""
        body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(seed)}
        status, answer = self.call(environment_id, "register", body, token)
        assert status == 200, answer
        return answer

    def grant(self, token: str, seed: int = 1000, environment_id: str = ENVIRONMENT) -> Json:
        """Ask for a harness's connection; return the answer."""
        body = {"harness_public_key": key_object(seed)}
        status, answer = self.call(environment_id, "connect", body, token)
        assert status == 200, answer
        return answer

    def post_connect(self, token: str, environment_id: str = ENVIRONMENT) -> http.client.HTTPConnection:
        """Send a connect call without waiting for its answer; the caller reads and closes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        body = json.dumps({"harness_public_key": key_object(1000)})
        headers = {"authorization": f"Bearer {token}"}
        connection.request("POST", f"/cloud/environment/{environment_id}/connect", body, headers)
        return connection

    def executor(self, token: str, seed: int = 0, environment_id: str = ENVIRONMENT) -> Peer:
        """Register and connect an executor."""
        return Peer(self.register(token, seed, environment_id)["url"])

    def harness(self, token: str, seed: int = 1000, environment_id: str = ENVIRONMENT) -> Peer:
        """Ask for a connection and make it."""
        return Peer(self.grant(token, seed, environment_id)["url"])

    def stop(self) -> int:
        """Ask it to end, and once more to hurry; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(WAIT)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it the hard way and release everything."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT)
        if self.process.stdout is not None:
            self.process.stdout.close()
        if not self._errors.closed:
            self._errors.close()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> RelayProcess:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        ended = self.process.poll()
        said = "" if self._errors.closed else self.errors()
        status = self.stop()
        if kind is None:
            assert "Traceback" not in said, said
            assert ended is not None or status == 0, said


class Refused(Exception):
    """The upgrade was refused."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(f"{status}: {body!r}")
        self.status = status
        self.headers = headers
        self.body = body


class Peer:
    """One rendezvous websocket, scripted. Owns its socket; every wait has a deadline."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None, receive_buffer: int = 0) -> None:
        """Connect; raises Refused."""
        parts = urlsplit(url)
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(WAIT)
        self.socket.connect((parts.hostname or "", parts.port or 80))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=parts.hostname)
        self._buffer = bytearray()
        self.close_code: int | None = None
        self.answers_pings = True
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        self.send_raw(
            f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        self._read_answer()

    def _read_answer(self) -> None:
        while b"\r\n\r\n" not in self._buffer:
            if not self._fill(WAIT):
                raise AssertionError(f"no answer to the upgrade: {bytes(self._buffer)!r}")
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        status_line, *lines = head.decode().split("\r\n")
        if " 101 " not in status_line:
            pairs = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            self.socket.close()
            raise Refused(int(status_line.split()[1]), headers, rest)
        self._buffer = bytearray(rest)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.settimeout(WAIT)
        self.socket.sendall(data)

    def send(self, stream_id: str, body: Body, ack: int = 0, ack_bits: int = 0) -> bytes:
        """Send a relay frame; return its bytes."""
        data = encode_frame(RelayFrame(stream_id, body, ack, ack_bits))
        self.send_message(data)
        return data

    def send_message(self, data: bytes, opcode: int = 2) -> None:
        """Send a message in one frame."""
        self.send_raw(masked_frame(opcode, data))

    def receive_message(self, timeout: float = WAIT) -> bytes | None:
        """Return the next message, or None at the end; control frames are dealt with. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while True:
            frame = self._parse()
            if frame is None:
                if not self._fill(max(0.0, deadline - time.monotonic())):
                    return None
                continue
            opcode, payload = frame
            if opcode == 2:
                return payload
            if opcode == 9 and self.answers_pings:
                self.send_message(payload, 10)
            elif opcode == 8:
                self.close_code = int.from_bytes(payload[:2], "big")

    def receive(self, timeout: float = WAIT) -> RelayFrame:
        """Return the next relay frame."""
        message = self.receive_message(timeout)
        assert message is not None, f"the connection ended, close code {self.close_code}"
        return decode_frame(message)

    def wait_for_end(self, timeout: float = WAIT) -> list[bytes]:
        """Read until the connection ends; return the messages on the way."""
        messages = []
        deadline = time.monotonic() + timeout
        while (message := self.receive_message(deadline - time.monotonic())) is not None:
            messages.append(message)
        return messages

    def _parse(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1], 2
        assert size < 0x80, "a server does not mask"
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(buffer) < 2 + width:
                return None
            size, start = int.from_bytes(buffer[2 : 2 + width], "big"), 2 + width
        if len(buffer) < start + size:
            return None
        opcode, payload = buffer[0] & 15, bytes(buffer[start : start + size])
        del buffer[: start + size]
        return opcode, payload

    def _fill(self, timeout: float) -> bool:
        self.socket.settimeout(max(0.001, timeout))
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def abort(self) -> None:
        """Drop the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        """Drop the connection without a word."""
        self.socket.close()


def masked_frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """Return a frame as a client sends it, with a mask of zeros."""
    first = opcode | (0x80 if final else 0)
    if len(payload) < 126:
        head = bytes((first, 0x80 | len(payload)))
    elif len(payload) < 65536:
        head = bytes((first, 0x80 | 126)) + len(payload).to_bytes(2, "big")
    else:
        head = bytes((first, 0x80 | 127)) + len(payload).to_bytes(8, "big")
    return head + bytes(4) + payload
