"""Everything real: our relay, our executors as processes, our client; takeover, restart, revocation."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
import pytest

from execserver.client import ExecServerClient, RemoteExecServerConnectArgs
from execserver.relay import tokens
from tests.support.greenlets import the_hub_settles
from tests.support.relay_process import ENVIRONMENT, RelayProcess
from tests.support.remote_process import RemoteProcess
from tests.support.waiting import wait_until

__all__ = ["the_hub_settles"]

MIB = 1024 * 1024
QUICK = {"close_timeout_s": 0.2}  # the client of this process does not hang up while the test waits


def end(relay: RelayProcess, number: signal.Signals) -> None:
    """End a relay while the loop, and with it the client of this process, goes on."""
    relay.process.send_signal(number)
    wait_until(lambda: relay.process.poll() is not None, 10, pause=gevent.sleep)


@contextmanager
def executor(relay: RelayProcess, token: str, **env: str) -> Iterator[RemoteProcess]:
    arguments = ("--environment-id", ENVIRONMENT)
    with RemoteProcess(relay.url, arguments, env={"CODEX_API_KEY": token, **env}) as process:
        process.says("waiting for a harness")
        yield process


def connect(relay: RelayProcess, token: str) -> ExecServerClient:
    args = RemoteExecServerConnectArgs(url=relay.url, environment_id=ENVIRONMENT, token=token)
    return ExecServerClient.connect_remote(args)


def test_a_command_and_an_edit(relay: RelayProcess, token: str, tmp_path: Path) -> None:
    with executor(relay, token), connect(relay, token) as client:
        done = client.start(["cat"], pipe_stdin=True).communicate(b"through the relay")
        assert (done.exit_code, done.stdout) == (0, b"through the relay")
        client.write_file(str(tmp_path / "f"), b"x" * (2 * MIB))
        assert client.read_file(str(tmp_path / "f")) == b"x" * (2 * MIB)
        assert relay.metric("execserver_relay_streams") == 1
    assert token not in relay.errors()


def test_of_two_executors_the_newer_one_stays_and_the_older_one_ends(relay: RelayProcess, token: str) -> None:
    with executor(relay, token) as old, connect(relay, token) as client:
        client.start(["true"]).communicate()
        with executor(relay, token) as new:
            assert old.wait() == 1
            assert "another executor has taken over this environment" in old.errors()
            with connect(relay, token) as later:
                assert later.start(["echo", "new"]).communicate().stdout == b"new\n"
            assert new.process.poll() is None
        taken = 'execserver_relay_registrations_total{outcome="taken_over"}'
        assert relay.metric(taken) == 1


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_relay_that_is_restarted_in_mid_stream_loses_nothing(
    tmp_path: Path, ending: signal.Signals
) -> None:
    """Every byte of a long output arrives, in order, over two relays."""
    words = ("--state", str(tmp_path / "state.db"), "--rate", "6", "--drain", "0")
    first = RelayProcess(*words, folder=tmp_path, limits=QUICK)
    token, port = first.token(), first.port
    size = 24 * MIB
    script = "import sys, os\nfor n in range(24): sys.stdout.buffer.write(bytes([n]) * (1 << 20))"
    with executor(first, token), connect(first, token) as client:
        process = client.start(["python3", "-c", script])
        digest, got, second = hashlib.sha256(), 0, None
        try:
            for event in process:
                piece = getattr(event, "data", b"")
                digest.update(piece)
                got += len(piece)
                if second is None and got > 9 * MIB:
                    end(first, ending)
                    second = RelayProcess(
                        *words, folder=tmp_path, limits=QUICK, listen=f"http://127.0.0.1:{port}"
                    )
            assert second is not None
            assert got == size
            expected = hashlib.sha256(b"".join(bytes([n]) * MIB for n in range(24)))
            assert digest.digest() == expected.digest()
            assert second.metric("execserver_relay_streams") == 1
        finally:
            first.kill()
            if second is not None:
                second.stop()


def test_an_executor_whose_token_is_revoked_is_out(relay: RelayProcess) -> None:
    for_executor, for_harness = relay.token(role="executor"), relay.token(role="harness")
    with executor(relay, for_executor) as process, connect(relay, for_harness) as client:
        client.start(["true"]).communicate()
        tokens.revoke(str(relay.token_file), for_executor.split("-")[1])
        assert process.wait() == 1
        assert "401 Unauthorized" in process.errors()
        assert for_executor not in process.errors()


def test_a_registry_that_drains_is_not_the_end_of_a_harness(tmp_path: Path) -> None:
    """A client that comes while the relay restarts waits for the new one."""
    words = ("--state", str(tmp_path / "state.db"), "--drain", "0")
    first = RelayProcess(*words, folder=tmp_path, limits=QUICK)
    token, port = first.token(), first.port
    with executor(first, token), connect(first, token) as client:
        assert client.start(["echo", "1"]).communicate().stdout == b"1\n"
        end(first, signal.SIGTERM)
        first.kill()
        with RelayProcess(*words, folder=tmp_path, limits=QUICK, listen=f"http://127.0.0.1:{port}"):
            assert client.start(["echo", "2"]).communicate().stdout == b"2\n"
