"""What ends at a client is freed at once: no connection, process or stream waits for a collection."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, cast

import gevent
import pytest
from gevent import socket

from execserver.client import (
    ConnectFailed,
    ExecServerClient,
    ExecServerClientConnectOptions,
    ExecServerError,
    OutputGap,
    OutputTooLarge,
    RegistryRefused,
    RemoteExecServerConnectArgs,
    ResumeFailed,
    SessionState,
    TransportClosed,
    WaitTimeout,
)
from execserver.client.errors import kept
from tests.client.conftest import QUICK
from tests.client.fake_server import FakeServer, Refusal
from tests.conftest import LONG
from tests.support.greenlets import turns
from tests.support.lives import assert_freed
from tests.support.relay_process import ENVIRONMENT, RelayProcess
from tests.support.remote_process import RemoteProcess as ExecutorProcess
from tests.support.server_process import OURS, ServerProcess
from tests.support.waiting import wait_until

LIVES = 1000 if LONG else 40
_PING = b"\x89\0"
QUICKLY_LOST = QUICK.replace(resume_interval=0.001, resume_window=0.01)


def transport(client: ExecServerClient) -> Any:
    """Return the carrier of a client's present connection."""
    return cast(Any, client)._session._connection._transport


def cut(client: ExecServerClient) -> None:
    """Break a client's connection, and wait until its session goes on."""
    before = client.resumptions
    transport(client)._socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: client.resumptions > before and client.state is SessionState.OPEN, pause=gevent.sleep)


def error_of(act: Callable[[], object]) -> ExecServerError | None:
    """Return what something raises."""
    try:
        act()
    except ExecServerError as error:
        return kept(error)
    return None


@pytest.fixture
def remote(server: ServerProcess) -> Iterator[ExecServerClient]:
    with ExecServerClient.connect(server.url, QUICK) as client:
        transport(client)._feed_library(_PING)  # what the first one loads and makes stays with the connection
        yield client


def test_a_connection(server: ServerProcess) -> None:
    def life(number: int) -> None:
        with ExecServerClient.connect(server.url) as client:
            client.environment_info()

    assert_freed(life, LIVES)


def test_a_connection_that_cannot_be_made(server: ServerProcess) -> None:
    def life(number: int) -> None:
        for url in ("ws://127.0.0.1:1", f"{server.url}/nothing?x=1", f"http{server.url[2:]}"):
            with pytest.raises(ExecServerError):
                ExecServerClient.connect(url, QUICK.replace(headers={"origin": "http://somebody"}))

    assert_freed(life, LIVES)


def test_a_session_that_is_resumed_and_left_to_another(server: ServerProcess) -> None:
    def life(number: int) -> None:
        first = ExecServerClient.connect(server.url, QUICK)
        process = first.start(["cat"], pipe_stdin=True)
        cut(first)
        first.detach()
        wanted = QUICK.replace(resume_session_id=first.session_id)
        with ExecServerClient.connect(server.url, wanted) as second:
            assert second.attach_process(process.process_id).terminate()

    assert_freed(life, LIVES)


def test_a_server_that_is_a_child(server: ServerProcess) -> None:
    def life(number: int) -> None:
        with ExecServerClient.connect_stdio([*OURS.argv, "--listen", "stdio"]) as client:
            client.environment_info()

    assert_freed(life, LIVES // 10)


def test_a_process_that_is_talked_to(remote: ExecServerClient) -> None:
    def life(number: int) -> None:
        process = remote.start(["sh", "-c", "cat; echo error >&2; exit 3"], pipe_stdin=True)
        done = process.communicate(b"x" * 300_000, timeout=20)
        assert (done.exit_code, done.stdout, done.stderr) == (3, b"x" * 300_000, b"error\n")

    assert_freed(life, LIVES)


def test_a_process_that_is_killed_while_somebody_reads(remote: ExecServerClient) -> None:
    def life(number: int) -> None:
        process = remote.start(["cat"], pipe_stdin=True)
        reader = gevent.spawn(process.next_event)
        writer = gevent.spawn(process.communicate)
        turns()
        with pytest.raises(WaitTimeout):
            process.wait(timeout=0.0)
        reader.kill()
        assert process.terminate()
        process.wait(timeout=20)
        writer.kill()

    assert_freed(life, LIVES)


def test_a_process_that_says_too_much_and_one_that_cannot_be_started(remote: ExecServerClient) -> None:
    def life(number: int) -> None:
        process = remote.start(["sh", "-c", "head -c 100000 /dev/zero"])
        with pytest.raises(OutputTooLarge):
            process.communicate(timeout=20, max_output=1000)
        for _ in process:
            pass
        with pytest.raises(ExecServerError):
            remote.start(["/nothing/of/this/name"])

    assert_freed(life, LIVES)


def test_a_watched_folder(server: ServerProcess, tmp_path: Any) -> None:
    def life(number: int) -> None:
        with ExecServerClient.connect(server.url, QUICK) as client:
            left_open = client.files.watch(tmp_path, coalesce=0.0)
            with client.files.watch(tmp_path, coalesce=0.0) as watch:
                (tmp_path / f"{number}").write_bytes(b"")
                assert next(watch).changes
                cut(client)
            assert left_open.next_batch() is not None
            with pytest.raises(ExecServerError):
                client.files.watch(tmp_path / "missing")

    # A server has 64 watches, and a session that was left keeps its own for a while.
    assert_freed(life, min(LIVES // 4, 50))


def test_a_file(remote: ExecServerClient, tmp_path: Any) -> None:
    def life(number: int) -> None:
        remote.write_file(str(tmp_path / "f"), b"content" * 1000)
        assert remote.read_file(str(tmp_path / "f")) == b"content" * 1000
        with remote.open_file(str(tmp_path / "f")) as file:
            file.read_block(0, 10)
        with pytest.raises(ExecServerError):
            remote.read_file(str(tmp_path / "missing"))

    assert_freed(life, LIVES)


@pytest.fixture
def fake_client(fake: FakeServer) -> Callable[..., ExecServerClient]:
    """Make clients of the server in memory, which remembers nothing of the ones before."""

    def made(options: ExecServerClientConnectOptions = QUICK) -> ExecServerClient:
        fake.carriers.clear()
        fake.requests.clear()
        return ExecServerClient(fake.open_transport, options)

    return made


def test_a_session_that_is_lost_for_good(
    fake: FakeServer, fake_client: Callable[..., ExecServerClient]
) -> None:
    def life(number: int) -> None:
        fake.unreachable = False
        client = fake_client(QUICKLY_LOST)
        process = client.start(["cat"], process_id="p")
        waiting = gevent.spawn(error_of, lambda: client.call("never/answered"))
        turns()
        fake.unreachable = True
        fake.current.drop(TransportClosed("broken") if number % 2 else None)
        with pytest.raises(ResumeFailed):
            process.wait(timeout=20)
        with pytest.raises(ResumeFailed):
            client.environment_info()
        assert isinstance(waiting.get(), TransportClosed)
        client.close()
        fake.carriers.clear()

    assert_freed(life, LIVES)


def test_a_call_that_is_refused_or_takes_too_long(
    fake: FakeServer, fake_client: Callable[..., ExecServerClient]
) -> None:
    def refuses(params: object) -> object:
        raise Refusal(-32600, "no")

    fake.answers["refused"] = refuses
    fake.unreachable = False
    client = fake_client()

    def life(number: int) -> None:
        with pytest.raises(ExecServerError):
            client.call("refused")
        with pytest.raises(WaitTimeout):
            client.call("never/answered", timeout=0.001)
        fake.requests.clear()

    assert_freed(life, LIVES)
    client.close()


def test_output_that_is_lost(fake: FakeServer, fake_client: Callable[..., ExecServerClient]) -> None:
    fake.answers["process/read"] = lambda params: {
        "chunks": [],
        "nextSeq": 10,
        "exited": True,
        "exitCode": 0,
        "closed": True,
    }

    def life(number: int) -> None:
        client = fake_client()
        process = client.start(["cat"], process_id="p")
        fake.current.drop()
        if number % 2:
            with pytest.raises(OutputGap):
                process.communicate(timeout=20)
        else:
            assert process.communicate(timeout=20, allow_gaps=True).gaps
        client.close()
        fake.carriers.clear()
        fake.requests.clear()

    assert_freed(life, LIVES)


def test_a_streamed_body(fake: FakeServer, fake_client: Callable[..., ExecServerClient]) -> None:
    fake.answers["http/request"] = lambda params: {"status": 200, "headers": [], "bodyBase64": ""}
    client = fake_client()

    def life(number: int) -> None:
        with client.http_stream("GET", "http://host/") as stream:
            data = base64.b64encode(b"content").decode()
            common = {"requestId": stream.request_id, "deltaBase64": data}
            fake.current.push("http/request/bodyDelta", **common, seq=1, done=False, error=None)
            ends = {"done": not number % 2, "error": "cut" if number % 2 else None}
            fake.current.push("http/request/bodyDelta", **common, seq=2, **ends)
            assert str(error_of(stream.read)) == ("cut" if number % 2 else "None")
        fake.requests.clear()

    assert_freed(life, LIVES)
    client.close()


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayProcess]:
    with RelayProcess(limits={"calls_per_s": 10_000}) as relay:
        yield relay


@pytest.fixture(scope="module")
def token(relay: RelayProcess) -> Iterator[str]:
    token = relay.token()
    variables = {"CODEX_API_KEY": token, "CODEX_HOME": str(relay.folder)}
    executor = ExecutorProcess(relay.url, ("--environment-id", ENVIRONMENT), env=variables)
    try:
        executor.says("waiting for a harness")
        yield token
        executor.stop()
    finally:
        executor.release()


def arguments(relay: RelayProcess, token: str) -> RemoteExecServerConnectArgs:
    options = ExecServerClientConnectOptions(resume_interval=0.01, close_timeout=0.2)
    return RemoteExecServerConnectArgs(
        url=relay.url, environment_id=ENVIRONMENT, token=token, options=options
    )


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_stream_through_a_relay(relay: RelayProcess, token: str, is_cut: bool) -> None:
    def life(number: int) -> None:
        with ExecServerClient.connect_remote(arguments(relay, token)) as client:
            client.environment_info()
            if is_cut:
                transport(client)._socket._sock.shutdown(socket.SHUT_RDWR)
            process = client.start(["cat"], pipe_stdin=True)
            assert process.communicate(b"x" * 100_000, timeout=20).stdout == b"x" * 100_000

    assert_freed(life, LIVES, foreign=("urllib.parse.SplitResult", "builtins.tuple"))


def test_a_relay_that_refuses(relay: RelayProcess, token: str) -> None:
    def life(number: int) -> None:
        with pytest.raises(RegistryRefused):
            ExecServerClient.connect_remote(arguments(relay, "wrong"))
        with pytest.raises(ConnectFailed):
            ExecServerClient.connect_remote(replace_url(arguments(relay, token), "http://127.0.0.1:1"))

    assert_freed(life, LIVES)


def replace_url(args: RemoteExecServerConnectArgs, url: str) -> RemoteExecServerConnectArgs:
    return args.replace(url=url)
