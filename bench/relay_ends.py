"""The relay under measurement, executors behind it, and scripted ends that cost the driver little."""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from bench.client import masked_frame
from bench.process_memory import process_bytes

ENVIRONMENT = "bench"
_LIMIT_S = 300.0  # under valgrind, on a machine that does other things too, everything takes long
_ROOT = Path(__file__).resolve().parents[1]

Json = dict[str, Any]


class RelayUnderTest:
    """A relay with one token; the context manager ends it."""

    def __init__(
        self,
        program: Sequence[str],
        cpus: set[int] | None,
        words: Sequence[str] = (),
        *,
        has_token_file: bool = True,
        shares_pages: bool = True,
    ) -> None:
        """Start it on some processors; `words` are further options.

        Without a token file it has an engine, and the tokens are there.  Without `shares_pages` a built
        program is unpacked anew, so that an executor of the same program has the pages of it for itself.
        """
        self._folder = tempfile.mkdtemp(prefix="bench-relay-")
        self._files = ["--token-file", f"{self._folder}/tokens.json"]
        self.token = self.make_token(ENVIRONMENT)
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus or own)
        try:
            files = self._files if has_token_file else []
            options = ["--rate", "0", "--drain", "0", "--log-level", "warn", *files, *words]
            env = {} if shares_pages else {"EXECSERVER_CACHE_DIR": f"{self._folder}/unpacked"}
            self._process = subprocess.Popen(
                [*program, "relay", *options], stdout=subprocess.PIPE, env={**os.environ, **env}
            )
        finally:
            os.sched_setaffinity(0, own - cpus if cpus and len(own) > 1 else own)
        assert self._process.stdout is not None
        try:
            self.url = self._process.stdout.readline().decode().strip()
        except BaseException:
            _end(self._process)
            raise
        self.pid = self._process.pid

    def make_token(self, environment_id: str) -> str:
        """Add a token to the file; a running relay looks at it every two seconds."""
        from execserver.relay import tokens

        return tokens.create(self._files[1], environment_id, tokens.BOTH)[1]

    def make_tokens(self, environment_ids: Sequence[str]) -> list[str]:
        """Put tokens into the place of the others, in one step: adding each would take minutes."""
        from execserver.relay.tokens import BOTH, digest_of

        texts = [f"esr-{number:012x}-{secrets.token_urlsafe(32)}" for number in range(len(environment_ids))]
        entries = [
            {
                "id": text.split("-")[1],
                "environment_id": name,
                "role": BOTH,
                "sha256": digest_of(text).hex(),
                "created": "",
            }
            for text, name in zip(texts, environment_ids, strict=True)
        ]
        file = Path(self._files[1])
        file.write_text(json.dumps({"tokens": entries}))
        self._process.send_signal(signal.SIGHUP)
        return texts

    @property
    def cpu_s(self) -> float:
        """CPU time it has used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_bytes(self) -> int:
        """Memory it has now."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def call(self, name: str, body: Json, token: str, environment_id: str = ENVIRONMENT) -> Json:
        """Make a registry call."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=_LIMIT_S)
        try:
            connection.request(
                "POST",
                f"/cloud/environment/{environment_id}/{name}",
                json.dumps(body),
                {"authorization": f"Bearer {token}"},
            )
            response = connection.getresponse()
            answer: Json = json.loads(response.read())
            if response.status != 200:
                raise RuntimeError(f"{name}: {response.status} {answer}")
            return answer
        finally:
            connection.close()

    def registered(self, token: str = "", environment_id: str = ENVIRONMENT) -> str:
        """Register something that has a key; return its URL."""
        body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": _key()}
        return str(self.call("register", body, token or self.token, environment_id)["url"])

    def scripted_executor(self, token: str = "", environment_id: str = ENVIRONMENT) -> socket.socket:
        """Register and connect something that only counts bytes."""
        return upgraded(self.registered(token, environment_id))

    def scripted_harness(self) -> socket.socket:
        """Connect the other side of it."""
        return upgraded(self.call("connect", {"harness_public_key": _key()}, self.token)["url"])

    def executors(self) -> int:
        """Return how many executors are connected."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=_LIMIT_S)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
        found = [line for line in page.splitlines() if line.startswith("execserver_relay_executors ")]
        return int(found[0].split()[1])

    def __enter__(self) -> RelayUnderTest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._process)
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Executor:
    """A real executor behind a relay; the context manager ends it."""

    def __init__(self, relay: RelayUnderTest, program: Sequence[str], home: str) -> None:
        self._process = subprocess.Popen(
            [*program, "--remote", relay.url, "--environment-id", ENVIRONMENT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "CODEX_HOME": home, "CODEX_API_KEY": relay.token},
        )
        deadline = time.monotonic() + _LIMIT_S
        try:
            while relay.executors() < 1:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError(f"{program[0]} did not connect")
                time.sleep(0.02)
        except BaseException:
            _end(self._process)
            raise
        self._relay = relay
        self.pid = self._process.pid

    @property
    def memory_bytes(self) -> int:
        """Memory that its processes have now, with their part of what they share with others."""
        return process_bytes(self.pid, ("Pss",))

    @property
    def written_bytes(self) -> int:
        """Memory that its processes have now and have written to."""
        return process_bytes(self.pid, ("Private_Dirty",))

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *rest: object) -> None:
        _end(self._process)
        while self._relay.executors():
            time.sleep(0.01)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def relay_frame(stream_id: str, size: int) -> bytes:
    """Return a data frame of a stream with so much payload, ready for the socket."""
    from execserver.wire.relay_frames import Data, RelayFrame, encode_frame

    return masked_frame(0x2, encode_frame(RelayFrame(stream_id, Data(0, bytes(size)))))


def _key() -> Json:
    return {
        "suite": "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256",
        "x25519_public_key": base64.b64encode(os.urandom(32)).decode(),
        "mlkem768_public_key": base64.b64encode(bytes(1184)).decode(),
    }


def upgraded(url: str) -> socket.socket:
    """Connect to a rendezvous URL."""
    parts = urlsplit(url)
    sock = socket.create_connection((str(parts.hostname), int(parts.port or 80)), _LIMIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(
        f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        if not piece:
            raise RuntimeError(f"the upgrade failed: {answer!r}")
        answer += piece
    if b" 101 " not in answer:
        raise RuntimeError(f"the upgrade was refused: {answer!r}")
    return sock
