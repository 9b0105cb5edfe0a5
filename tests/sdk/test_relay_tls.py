"""Through a relay with TLS, and through a proxy: both as the environment says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.client.errors import ConnectFailed
from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from execserver.http_client.proxy import Proxies
from execserver.http_client.url import parse
from execserver_client._dial import Dialer, DialFailed
from execserver_client._relay import RelayTransport
from execserver_client._relay_connector import RelayConnector
from tests.sdk.json_talk import Talk
from tests.sdk.support import run_async
from tests.support.certificates import make_authority
from tests.support.relay_process import ENVIRONMENT, RelayProcess
from tests.support.remote_process import RemoteProcess


class TlsRelay:
    """A relay with a certificate of an authority of its own, and an executor."""

    def __init__(self, folder: Path) -> None:
        authority = make_authority()
        self.trusted = folder / "authority.pem"
        self.trusted.write_bytes(authority.pem)
        certificate = folder / "server.pem"
        certificate.write_bytes(authority.issue("127.0.0.1"))
        words = ("--tls-cert", str(certificate), "--tls-key", str(certificate))
        self.relay = RelayProcess(*words, listen="https://127.0.0.1:0")
        self.relay.tls = ssl.create_default_context(cadata=authority.pem.decode())
        self.token = self.relay.token()
        env = {"CODEX_API_KEY": self.token, "SSL_CERT_FILE": str(self.trusted)}
        self.executor = RemoteProcess(self.relay.url, ("--environment-id", ENVIRONMENT), env=env)
        self.executor.says("waiting for a harness")

    def args(self, ca_file: Path | None = None) -> RemoteExecServerConnectArgs:
        options = ExecServerClientConnectOptions(ca_file=None if ca_file is None else str(ca_file))
        return RemoteExecServerConnectArgs(
            url=self.relay.url, environment_id=ENVIRONMENT, token=self.token, options=options
        )

    def close(self) -> None:
        self.executor.release()
        self.relay.stop()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRelay]:
    relay = TlsRelay(tmp_path_factory.mktemp("tls"))
    yield relay
    relay.close()


async def turn(args: RemoteExecServerConnectArgs, environ: dict[str, str]) -> None:
    transport = await RelayTransport.connect(RelayConnector(args, environ), 10)
    try:
        talk = Talk(transport)
        await talk.initialize()
        await talk.start("p", ["sh", "-c", "echo out; head -c 1000000 /dev/zero"])
        assert await talk.output("p") == b"out\n" + bytes(1_000_000)
    finally:
        await transport.close()


def test_only_the_authorities_of_the_environment_are_trusted(relay: TlsRelay, tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(ConnectFailed, match="certificate verify failed"):
            await turn(relay.args(), {})
        with pytest.raises(ConnectFailed, match=r"missing\.pem, named by SSL_CERT_FILE"):
            await turn(relay.args(), {"SSL_CERT_FILE": str(tmp_path / "missing.pem")})
        await turn(relay.args(), {"SSL_CERT_FILE": str(relay.trusted)})
        await turn(relay.args(relay.trusted), {})

    run_async(test())


def test_a_proxy_is_asked_for_a_tunnel_to_registry_and_rendezvous(relay: TlsRelay) -> None:
    asked: list[bytes] = []

    async def test() -> None:
        async with Tunnels(asked) as proxy:
            environ = {"SSL_CERT_FILE": str(relay.trusted), "HTTPS_PROXY": f"http://me:secret@{proxy.place}"}
            await turn(relay.args(), environ)
            proxy.answer = b"HTTP/1.1 403 Forbidden\r\n\r\n"
            with pytest.raises(ConnectFailed, match="the proxy answered 403") as failed:
                await turn(relay.args(), environ)
            assert "secret" not in str(failed.value)
            proxy.answer = b"nonsense\r\n\r\n"
            with pytest.raises(ConnectFailed, match="the proxy did not answer in HTTP"):
                await turn(relay.args(), environ)
            await turn(relay.args(), environ | {"NO_PROXY": "127.0.0.1"})

    run_async(test())
    assert len(asked) == 4
    line = f"CONNECT 127.0.0.1:{relay.relay.port} HTTP/1.1\r\n".encode()
    assert all(head.startswith(line) and b"Proxy-Authorization: Basic " in head for head in asked)


def test_a_proxy_of_another_kind_is_refused_before_anything_is_sent() -> None:
    async def test() -> None:
        proxies = Proxies({"HTTPS_PROXY": "socks5://127.0.0.1:1"})
        dialer = Dialer({}, ExecServerClientConnectOptions())
        with pytest.raises(DialFailed, match="proxies of scheme `socks5` are not supported"):
            await dialer.open(parse("https://relay.test/"), proxies, tunnels=True)

    run_async(test())


class Tunnels:
    """A proxy that keeps what it was asked."""

    def __init__(self, asked: list[bytes]) -> None:
        self.answer = b""
        self._asked = asked
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Tunnels:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.place = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        head = await reader.readuntil(b"\r\n\r\n")
        self._asked.append(head)
        if self.answer:
            writer.write(self.answer)
            await reader.read()
            writer.close()
            return
        host, _, port = head.split()[1].decode().partition(":")
        onward, backward = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(carry(reader, backward), carry(onward, writer))


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()
