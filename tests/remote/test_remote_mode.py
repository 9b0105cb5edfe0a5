"""Remote mode as a user has it: a process, a relay on loopback, and clients that come through it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
from pathlib import Path

import gevent
import pytest

from execserver.client import ExecServerClient, RequestFailed
from execserver.client.options import ExecServerClientConnectOptions
from execserver.core.env_policy import SERVER_CREDENTIALS
from execserver.protocol.process import ExecEnvPolicy, ExecEnvPolicyInherit
from execserver.remote.streams import MAX_ACTIVE
from execserver.wire.relay_frames import Data, Handshake, RelayFrame, encode_frame
from tests.remote.raw_harness import NotLetIn, RawHarness
from tests.support.relay import Relay, Reply
from tests.support.remote_process import API_KEY, RemoteProcess, connect
from tests.support.waiting import wait_until

LONG = os.environ.get("EXECSERVER_LONG") == "1"
MIB = 1024 * 1024
ALL = ExecEnvPolicy(
    inherit=ExecEnvPolicyInherit.ALL, ignore_default_excludes=True, exclude=(), set={}, include_only=()
)


def test_a_harness_runs_commands_and_edits_files(
    relay: Relay, executor: RemoteProcess, tmp_path: Path
) -> None:
    with connect(relay) as client:
        script = ["/bin/sh", "-c", "cat; echo to-stderr >&2; exit 3"]
        done = client.start(script, pipe_stdin=True).communicate(b"input")
        assert (done.stdout, done.stderr, done.exit_code) == (b"input", b"to-stderr\n", 3)
        client.write_file(str(tmp_path / "f"), b"x" * (3 * MIB))
        assert client.read_file(str(tmp_path / "f")) == b"x" * (3 * MIB)
        executor.says("a harness connected")
    executor.says("a harness left")
    assert executor.stop() == 0
    assert executor.process.stdout is not None
    assert executor.process.stdout.read() == b""


def test_each_harness_is_a_connection_of_its_own(relay: Relay, executor: RemoteProcess) -> None:
    with connect(relay) as one, connect(relay) as two:
        assert one.session_id != two.session_id
        assert one.start(["echo", "1"]).communicate().stdout == b"1\n"
        assert two.start(["echo", "2"]).communicate().stdout == b"2\n"
        executor.says("2 connected")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_children_and_exits_with_0(
    relay: Relay, executor: RemoteProcess, number: signal.Signals
) -> None:
    with connect(relay) as client:
        process = client.start(["/bin/sh", "-c", "echo $$; sleep 300"])
        pid = 0
        for event in process:
            pid = int(getattr(event, "data", b"0") or 0)
            break
        assert executor.stop(number) == 0
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), pause=gevent.sleep)
        client.detach()


def test_a_signal_ends_an_executor_that_is_not_connected(relay: Relay) -> None:
    relay.upgrade_status = 503
    with RemoteProcess(relay.url) as process:
        process.says("reconnecting in")
        assert process.stop() == 0


def test_what_happens_is_told_as_objects_too_and_no_secret_is(relay: Relay) -> None:
    with RemoteProcess(relay.url, ("--environment-id", "env-1", "--log-format", "json")) as process:
        process.says("waiting for a harness")
        connect(relay).close()
        process.says("a harness left")
        relay.replies["register"] = lambda call: Reply(401, {"error": {"message": f"no: {API_KEY}"}})
        relay.upgrade_status = 401
        relay.executor.drop()
        assert process.wait() == 1
        lines = [json.loads(line) for line in process.errors().splitlines()]
    text = "\n".join(line["message"] for line in lines)
    for part in (
        "registered as environment env-1",
        "a harness connected",
        "reconnecting in",
        "no: [redacted]",
    ):
        assert part in text
    assert API_KEY not in text
    assert "?n=" not in text
    assert lines[-1]["level"] == "error"


@pytest.mark.parametrize("level", ["off", "warn"])
def test_a_level_that_is_asked_for_is_kept_and_a_failure_told_all_the_same(relay: Relay, level: str) -> None:
    relay.replies["register"] = lambda call: Reply(404)
    with RemoteProcess(relay.url, ("--environment-id", "e", "--log-level", level)) as process:
        assert process.wait() == 1
        assert process.errors() == (
            "Error: environment registry request failed (404 Not Found): empty or malformed error body\n"
        )


@pytest.mark.parametrize(
    ("arguments", "env", "text"),
    [
        (
            ("--environment-id", "a/b"),
            {},
            "Error: environment registry configuration error: environment id `a/b` cannot be used",
        ),
        (
            ("--environment-id", "e"),
            {"CODEX_API_KEY": ""},
            "Error: remote exec-server registration requires ChatGPT authentication or API key "
            "authentication; run `codex login` or set CODEX_API_KEY\n",
        ),
        (
            ("--environment-id", "e", "--use-agent-identity-auth"),
            {},
            "Error: CODEX_ACCESS_TOKEN is required when --use-agent-identity-auth is set\n",
        ),
        (
            ("--executor-id", "e"),
            {},
            "Error: executor registry authentication error: executor registry bearer token environment "
            "variable `CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN` is not set\n",
        ),
    ],
)
def test_a_mistake_is_told_and_exits_with_1(
    relay: Relay, tmp_path: Path, arguments: tuple[str, ...], env: dict[str, str], text: str
) -> None:
    with RemoteProcess(relay.url, arguments, env={"CODEX_HOME": str(tmp_path), **env}) as process:
        assert process.wait() == 1
        assert text in process.errors()
    assert relay.calls == []


def test_the_credentials_are_not_inherited_by_commands(relay: Relay) -> None:
    env = {name.decode(): "secret-value" for name in SERVER_CREDENTIALS} | {"VISIBLE": "1"}
    with RemoteProcess(relay.url, env=env) as process:
        process.says("waiting for a harness")
        with connect(relay) as client:
            printed = client.start(["env"], env_policy=ALL).communicate().stdout
    assert b"VISIBLE=1" in printed
    assert b"secret-value" not in printed


def test_a_file_too_large_for_a_message_is_refused_before_it_is_read(
    relay: Relay, executor: RemoteProcess, tmp_path: Path
) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(60 * MIB)
    with connect(relay) as client:
        with pytest.raises(RequestFailed) as refused:
            client.call("fs/readFile", {"path": f"file://{tmp_path}/large", "sandbox": None})
        assert refused.value.code == -32600
        assert refused.value.message == "file is too large to read: limit is 50330880 bytes"
        assert client.start(["echo", "on"]).communicate().stdout == b"on\n"


def test_a_session_outlives_the_websocket(relay: Relay, executor: RemoteProcess) -> None:
    with connect(relay) as client:
        session = client.session_id
        process = client.start(["/bin/sh", "-c", "read line; echo got $line"], pipe_stdin=True)
        relay.executor.drop()
        wait_until(lambda: len(relay.executors) == 2, pause=gevent.sleep)
        process.write(b"it\n")
        assert process.communicate().stdout == b"got it\n"
        assert client.session_id == session
    assert len(relay.asked("register")) == 1


@pytest.mark.timeout(300)
def test_no_byte_is_lost_while_websockets_break(relay: Relay, executor: RemoteProcess) -> None:
    size = (200 if LONG else 12) * MIB
    cuts = 20 if LONG else 3
    script = (
        "import sys, random\nnumbers = random.Random(1)\n"
        f"for _ in range({size // 65536}): sys.stdout.buffer.write(numbers.randbytes(65536))"
    )
    digest, received = hashlib.sha256(), 0
    with connect(relay) as client:
        process = client.start(["python3", "-c", script], env={"PATH": os.environ["PATH"]})
        next_cut = size // (cuts + 1)
        for event in process:
            data = getattr(event, "data", b"")
            digest.update(data)
            received += len(data)
            if received >= next_cut and cuts:
                cuts -= 1
                next_cut += size // 22
                relay.executor.drop()
                if cuts % 2:
                    relay.harnesses[-1].drop()
    assert received == size
    assert digest.hexdigest() == expected(size)


def expected(size: int) -> str:
    """Return the digest of what the script prints."""
    numbers, digest = random.Random(1), hashlib.sha256()
    for _ in range(size // 65536):
        digest.update(numbers.randbytes(65536))
    return digest.hexdigest()


def test_a_harness_that_reads_nothing_does_not_stop_the_others(relay: Relay, executor: RemoteProcess) -> None:
    with connect(relay) as greedy, connect(relay) as other:
        flood = greedy.start(["cat", "/dev/zero"], collect_output=False)
        for _ in range(20):
            assert other.start(["echo", "here"]).communicate().stdout == b"here\n"
        flood.terminate()


def test_messages_that_are_none_reset_the_stream_only(relay: Relay, executor: RemoteProcess) -> None:
    with connect(relay) as client:
        for message in (b"{}", b"[]", b"nonsense"):
            harness = RawHarness(relay)
            harness.send(message)
            assert harness.next() == "noise_relay_protocol_error"
            harness.close()
        assert client.start(["echo", "on"]).communicate().stdout == b"on\n"


def test_a_plain_harness_gets_exactly_the_plain_protocol(relay: Relay, executor: RemoteProcess) -> None:
    harness = RawHarness(relay)
    harness.send(
        b'{"id":1,"method":"initialize","params":{"clientName":"codex-environment","resumeSessionId":null}}'
    )
    answer = json.loads(harness.next())
    assert "relayReliability" not in answer["result"]
    harness.send(b'{"method":"initialized","params":{}}')
    for number in range(2, 400):  # more than the reference takes at a time
        harness.send(b'{"id":%d,"method":"environment/info","params":null}' % number)
    for number in range(2, 400):
        assert json.loads(harness.next())["id"] == number
    assert harness.acks == set()
    session = answer["result"]["sessionId"]
    relay.executor.drop()  # ends the stream; the session waits for who takes it up
    wait_until(lambda: len(relay.executors) == 2, pause=gevent.sleep)
    harness.close()
    again = RawHarness(relay)
    resume = {"clientName": "codex-environment", "resumeSessionId": session}
    again.send(json.dumps({"id": 1, "method": "initialize", "params": resume}).encode())
    assert json.loads(again.next())["result"]["sessionId"] == session
    again.close()


def test_as_many_harnesses_as_are_allowed_are_served_side_by_side(
    relay: Relay, executor: RemoteProcess
) -> None:
    ask = b'{"id":1,"method":"initialize","params":{"clientName":"x","resumeSessionId":null}}'
    harnesses = [RawHarness(relay) for _ in range(MAX_ACTIVE)]
    for harness in harnesses:
        harness.send(ask)
    sessions = {json.loads(harness.next())["result"]["sessionId"] for harness in harnesses}
    assert len(sessions) == MAX_ACTIVE
    with pytest.raises(NotLetIn, match="noise_relay_protocol_error"):
        RawHarness(relay)
    for harness in harnesses:
        harness.close()


def test_hostile_frames_on_the_websocket_harm_nobody(relay: Relay, executor: RemoteProcess) -> None:
    numbers = random.Random(3)
    with connect(relay) as client:
        process = client.start(["cat"], pipe_stdin=True)
        for number in range(10_000 if LONG else 300):
            kind = number % 3
            stream_id = f"h{numbers.randrange(50)}"
            if kind == 0:
                relay.executor.send(numbers.randbytes(numbers.randrange(300)))
            elif kind == 1:
                frame = RelayFrame(stream_id, Data(numbers.randrange(100), numbers.randbytes(50)))
                relay.executor.send(encode_frame(frame))
            else:
                frame = RelayFrame(stream_id, Handshake(numbers.randbytes(3600)))
                relay.executor.send(encode_frame(frame))
            if number % 100 == 0:
                process.write(b"%d\n" % number)
        process.close_stdin()
        expected_lines = b"".join(b"%d\n" % number for number in range(0, 10_000 if LONG else 300, 100))
        assert process.communicate().stdout == expected_lines
        assert client.resumptions == 0
    assert len(relay.executors) == 1


def test_the_plain_form_of_may_serves_one_harness_and_registers_each_time(relay: Relay) -> None:
    env = {"CODEX_API_KEY": "", "CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN": "bearer-of-may"}
    with RemoteProcess(relay.url, ("--executor-id", "box-1"), env=env) as process:
        process.says("codex exec-server remote executor registered with executor_id box-1")
        relay.routing = False
        wait_until(lambda: relay.executors, pause=gevent.sleep)
        (call,) = relay.calls
        assert (call.path, call.body) == ("/cloud/executor/box-1/register", None)
        assert call.headers["authorization"] == "Bearer bearer-of-may"
        ask = b'{"id":1,"method":"initialize","params":{"clientName":"x","resumeSessionId":null}}'
        relay.executor.send(ask, text=True)
        assert json.loads(relay.executor.texts.get(timeout=20))["id"] == 1
        relay.executor.send(b"{", text=True)
        assert json.loads(relay.executor.texts.get(timeout=20))["id"] == -1
        relay.executor.drop()
        wait_until(lambda: len(relay.executors) == 2, pause=gevent.sleep)
        assert len(relay.asked("register")) == 2
        relay.replies["register"] = lambda call: Reply(403, {"error": {"message": "enough"}})
        relay.executor.drop()
        assert process.wait() == 1
        assert process.errors().endswith(
            "Error: executor registry authentication error: executor registry authentication failed "
            "(403 Forbidden): enough\n"
        )


def test_the_python_surface_raises_what_is_fatal() -> None:
    import subprocess
    import sys

    code = (
        "import execserver\n"
        "config = execserver.RemoteEnvironmentConfig('http://127.0.0.1:1', 'env-1')\n"
        "try: execserver.run_remote_environment(config)\n"
        "except execserver.RemoteError as error: print(error.text)\n"
        "try: execserver.run_remote_executor(execserver.RemoteExecutorConfig('http://127.0.0.1:1', 'x'))\n"
        "except execserver.RemoteError as error: print(error.text)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "PATH": os.environ["PATH"],
            "CODEX_API_KEY": API_KEY,
            "EXECSERVER_LOG": "off",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("environment registry request failed: error sending request")
    assert "is not set" in second
    assert done.stderr == ""


def test_the_options_of_a_client_hold_for_relays_too(relay: Relay, executor: RemoteProcess) -> None:
    client: ExecServerClient = connect(relay, ExecServerClientConnectOptions(client_name="named"))
    with client:
        assert client.environment_info().shell.name
