"""Our client against the reference as a remote executor, through our relay: a whole turn and its troubles."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.client import (
    ExecServerClient,
    ExecServerClientConnectOptions,
    NotFoundError,
    Output,
    RegistryRefused,
    RemoteExecServerConnectArgs,
    RemoteProcess,
    SessionState,
    TransportClosed,
)
from execserver.client.relay.transport import RelayTransport
from tests.reference.install import ReferenceMissing, new_home, reference_binary
from tests.support.greenlets import the_hub_settles
from tests.support.relay_process import ENVIRONMENT, RelayProcess
from tests.support.server_process import base_environment, interrupts_not_ignored
from tests.support.waiting import wait_until

__all__ = ["the_hub_settles"]


class Executor:
    """One reference program registered at a relay; `close` ends it and removes its folder."""

    def __init__(self, version: str, relay: RelayProcess) -> None:
        self.relay = relay
        self.token = relay.token()
        self.home = new_home()
        variables = base_environment() | {"CODEX_HOME": str(self.home), "CODEX_API_KEY": self.token}
        command = [str(reference_binary(version)), "exec-server", "--remote", relay.url]
        with interrupts_not_ignored():
            self.process = subprocess.Popen(
                [*command, "--environment-id", ENVIRONMENT],
                env=variables,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        try:
            # Asking before the executor has registered would be refused.
            wait_until(lambda: relay.metric("execserver_relay_executors") == 1, 20.0)
        except BaseException:
            self.close()
            raise

    def args(self, **options: object) -> RemoteExecServerConnectArgs:
        """Return what a client needs."""
        return RemoteExecServerConnectArgs(
            url=self.relay.url,
            environment_id=ENVIRONMENT,
            token=self.token,
            options=ExecServerClientConnectOptions(client_name="codex-environment", **options),  # type: ignore[arg-type]
        )

    def close(self) -> None:
        """End the program."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture(scope="module", params=["0.142.0", "0.169.0"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with RelayProcess() as relay:
        try:
            executor = Executor(request.param, relay)
        except ReferenceMissing as missing:
            pytest.skip(str(missing))
        yield executor
        executor.close()


@pytest.fixture
def client(executor: Executor) -> Iterator[ExecServerClient]:
    with ExecServerClient.connect_remote(executor.args()) as client:
        yield client


def output(process: RemoteProcess) -> bytes:
    return b"".join(event.data for event in process if isinstance(event, Output))


def test_a_whole_turn(client: ExecServerClient, tmp_path: Path) -> None:
    assert client.session_id
    note = tmp_path / "note"
    client.write_file(str(note), b"hello")
    assert note.read_bytes() == b"hello"
    assert client.read_file(str(note)) == b"hello"
    with pytest.raises(NotFoundError):
        client.read_file(str(tmp_path / "none"))
    process = client.start(["sh", "-c", "cat note; echo err >&2; exit 3"], cwd=str(tmp_path))
    done = process.communicate()
    assert (done.stdout, done.stderr, process.wait()) == (b"hello", b"err\n", 3)


def test_a_process_takes_input(client: ExecServerClient) -> None:
    process = client.start(["cat"], pipe_stdin=True)
    for line in (b"one\n", b"two\n"):
        process.write(line)
    echoed = b""
    for event in process:
        echoed += event.data if isinstance(event, Output) else b""
        if echoed.count(b"\n") == 2:
            process.terminate()
    assert echoed == b"one\ntwo\n"


def test_large_content_and_a_long_stream(client: ExecServerClient, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    client.write_file(str(tmp_path / "large"), content)
    assert client.read_file(str(tmp_path / "large")) == content
    process = client.start(["sh", "-c", "seq 1 300000"])
    assert output(process) == b"".join(b"%d\n" % number for number in range(1, 300_001))


def test_many_requests_at_once_do_not_end_the_stream(client: ExecServerClient) -> None:
    calls = [gevent.spawn(client.get_metadata, "/") for _ in range(2000)]
    gevent.joinall(calls, timeout=50, raise_error=True)
    assert all(call.value is not None and call.value.is_directory for call in calls)
    assert client.resumptions == 0


def test_a_lost_websocket_is_followed_by_a_resumed_session(executor: Executor) -> None:
    with ExecServerClient.connect_remote(executor.args()) as client:
        process = client.start(["sh", "-c", "echo begun; sleep 1; echo ended"])
        session = client.session_id
        transport = client._session._connection._transport  # type: ignore[union-attr]
        assert isinstance(transport, RelayTransport)
        assert not transport.is_reliable
        assert transport._socket is not None
        transport._socket.close()
        wait_until(lambda: client.resumptions == 1, 20.0, pause=gevent.sleep)
        assert client.state is SessionState.OPEN
        assert client.session_id == session
        assert output(process) == b"begun\nended\n"
        assert process.wait() == 0


def test_several_clients_have_sessions_of_their_own(executor: Executor) -> None:
    with (
        ExecServerClient.connect_remote(executor.args()) as one,
        ExecServerClient.connect_remote(executor.args()) as two,
    ):
        assert one.session_id != two.session_id
        processes = [client.start(["echo", "x"], process_id="same") for client in (one, two)]
        assert [output(process) for process in processes] == [b"x\n", b"x\n"]


def test_another_token_is_refused(executor: Executor) -> None:
    args = RemoteExecServerConnectArgs(url=executor.relay.url, environment_id=ENVIRONMENT, token="esr_wrong")
    with pytest.raises(RegistryRefused, match="401 Unauthorized"):
        ExecServerClient.connect_remote(args)


def test_an_executor_that_is_gone_ends_the_session() -> None:
    with RelayProcess() as relay:
        try:
            executor = Executor("0.142.0", relay)
        except ReferenceMissing as missing:
            pytest.skip(str(missing))
        try:
            with ExecServerClient.connect_remote(executor.args(resume_window=2.0)) as client:
                executor.process.kill()
                wait_until(lambda: client.state is SessionState.ENDED, 20.0, pause=gevent.sleep)
                with pytest.raises(TransportClosed):
                    client.read_file("/etc/hostname")
        finally:
            executor.close()
