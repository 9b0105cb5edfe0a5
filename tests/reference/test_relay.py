"""Our relay between the reference's programs and ours: executors of two versions, clients of two versions."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.client import ExecServerClient, RemoteExecServerConnectArgs
from tests.reference.install import ReferenceMissing, new_home, reference_binary
from tests.reference.model_server import say
from tests.reference.scenario import MARK, MakeClient, outputs, shell
from tests.reference.tool_output import ToolOutput
from tests.support.certificates import make_authority
from tests.support.greenlets import the_hub_settles
from tests.support.relay_process import ENVIRONMENT, RelayProcess
from tests.support.remote_process import RemoteProcess
from tests.support.waiting import wait_until

__all__ = ["the_hub_settles"]

pytestmark = pytest.mark.timeout(300)
MIB = 1024 * 1024
FOR = ("--environment-id", ENVIRONMENT)


class ReferenceExecutor:
    """A reference executor at a relay; `close` ends it."""

    def __init__(self, version: str, relay: RelayProcess, token: str, **env: str) -> None:
        self.home = new_home()
        self.process = subprocess.Popen(
            [
                str(reference_binary(version)),
                "exec-server",
                "--remote",
                relay.url,
                "--environment-id",
                ENVIRONMENT,
            ],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "CODEX_HOME": str(self.home), "CODEX_API_KEY": token, **env},
        )

    def ended_with(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and what it said."""
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors.decode()

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def relay() -> Iterator[RelayProcess]:
    """A relay."""
    with RelayProcess("--drain", "0") as running:
        yield running


@pytest.fixture(params=["0.142.0", "0.169.0"])
def version(request: pytest.FixtureRequest) -> str:
    """The version of the reference executor; skips where it cannot be had."""
    try:
        reference_binary(request.param)
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    return str(request.param)


def wait_for_executors(relay: RelayProcess, registered: int = 1) -> None:
    def is_there() -> bool:
        page = relay.request("GET", "/metrics")[2].decode().splitlines()
        counts = [line for line in page if line.startswith("execserver_relay_registrations_total")]
        return (
            sum(int(line.split()[1]) for line in counts) >= registered
            and "execserver_relay_executors 1" in page
        )

    wait_until(is_there, 30)


def connect(relay: RelayProcess, token: str) -> ExecServerClient:
    args = RemoteExecServerConnectArgs(url=relay.url, environment_id=ENVIRONMENT, token=token)
    return ExecServerClient.connect_remote(args)


def test_a_reference_executor_serves_our_client(relay: RelayProcess, version: str, tmp_path: Path) -> None:
    token = relay.token()
    executor = ReferenceExecutor(version, relay, token)
    try:
        wait_for_executors(relay)
        with connect(relay, token) as client, connect(relay, token) as other:
            assert client.start(["echo", "one"]).communicate().stdout == b"one\n"
            client.write_file(str(tmp_path / "f"), b"y" * MIB)
            assert other.read_file(str(tmp_path / "f")) == b"y" * MIB
            long = client.start(["head", "-c", str(20 * MIB), "/dev/zero"]).communicate()
            assert len(long.stdout) == 20 * MIB
            assert relay.metric("execserver_relay_streams") == 2
        assert relay.metric('execserver_relay_validations_total{valid="true"}') == 2
        assert executor.process.poll() is None
    finally:
        executor.close()


def test_of_two_reference_executors_the_newer_one_stays(relay: RelayProcess, version: str) -> None:
    token = relay.token()
    old = ReferenceExecutor(version, relay, token)
    try:
        wait_for_executors(relay)
        new = ReferenceExecutor(version, relay, token)
        try:
            wait_for_executors(relay, 2)
            code, said = old.ended_with()
            assert code == 1
            assert "another executor has taken over this environment" in said
            with connect(relay, token) as client:
                assert client.start(["echo", "new"]).communicate().stdout == b"new\n"
            time.sleep(1.5)  # longer than it takes an executor to come back
            assert new.process.poll() is None
        finally:
            new.close()
    finally:
        old.close()


def test_a_refused_token_ends_a_reference_executor_with_its_text(relay: RelayProcess, version: str) -> None:
    executor = ReferenceExecutor(version, relay, "esr-000000000000-" + "A" * 43)
    try:
        code, said = executor.ended_with()
        assert code == 1
        assert "401 Unauthorized" in said
        assert "a valid token of this relay is needed, as bearer token" in said
    finally:
        executor.close()


def test_a_reference_executor_survives_a_restart_of_the_relay(version: str, tmp_path: Path) -> None:
    words = ("--state", str(tmp_path / "state.db"), "--drain", "0")
    relay = RelayProcess(*words, folder=tmp_path)
    token, port = relay.token(), relay.port
    executor = ReferenceExecutor(version, relay, token)
    try:
        wait_for_executors(relay)
        relay.stop()
        with RelayProcess(*words, folder=tmp_path, listen=f"http://127.0.0.1:{port}") as second:
            wait_until(lambda: second.metric("execserver_relay_executors") == 1, 30)
            with connect(second, token) as client:
                assert client.start(["echo", "again"]).communicate().stdout == b"again\n"
    finally:
        executor.close()


def test_a_reference_executor_comes_by_tls(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority()
    (tmp_path / "authority.pem").write_bytes(authority.pem)
    (tmp_path / "server.pem").write_bytes(authority.issue("127.0.0.1"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    words = ("--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.pem"))
    with RelayProcess(*words, "--drain", "0", listen="https://127.0.0.1:0") as relay:
        relay.tls = ssl.create_default_context(cadata=authority.pem.decode())
        token = relay.token()
        executor = ReferenceExecutor(version, relay, token, SSL_CERT_FILE=str(tmp_path / "authority.pem"))
        try:
            wait_for_executors(relay)
            with connect(relay, token) as client:
                done = client.start(["head", "-c", str(8 * MIB), "/dev/zero"]).communicate()
                assert done.stdout == bytes(8 * MIB)
        finally:
            executor.close()


def test_the_real_client_works_through_our_relay_on_our_executor(
    relay: RelayProcess, make_client: MakeClient
) -> None:
    token = relay.token()
    env = {"CODEX_API_KEY": token, "EXECUTOR_MARK": MARK}
    with RemoteProcess(relay.url, FOR, env=env) as executor:
        executor.says("waiting for a harness")
        client = make_client([[shell("echo EXECUTOR_MARK=$EXECUTOR_MARK; cat side > made")], [say("done")]])
        client.extra_env = {
            "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL": relay.url,
            "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID": ENVIRONMENT,
            "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": token,
        }
        (client.workspace / "side").write_text("through the relay\n")
        client.run(None)
        assert outputs(client) == {"call-1": ToolOutput(0, None, f"EXECUTOR_MARK={MARK}\n")}
        assert (client.workspace / "made").read_text() == "through the relay\n"
