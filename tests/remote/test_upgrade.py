"""An environment's server becomes another program: harnesses resume and lose nothing, and no secret shows."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import gevent
import pytest

from execserver.audit.reading import records, verify
from execserver.client import ExecServerClient, Output, TransportClosed
from execserver.client import RemoteProcess as ClientProcess
from tests.remote.agents import Issuer, check_assertion, claims
from tests.remote.chatgpt_hosts import ChatGptHosts
from tests.remote.conftest import WaitedTooLong
from tests.remote.raw_harness import RawHarness
from tests.support import proc
from tests.support.greenlets import the_hub_settles
from tests.support.relay import Relay, Reply
from tests.support.remote_process import API_KEY, RemoteProcess, connect
from tests.support.remote_scene import RemoteScene, output
from tests.support.upgrades import Running, program, program_that_cannot_run, refused, upgraded
from tests.support.waiting import wait_until

__all__ = ["the_hub_settles"]

pytestmark = pytest.mark.timeout(180)
LONG = os.environ.get("EXECSERVER_LONG") == "1"
UPGRADES = 200 if LONG else 5
FOR = ("--environment-id", "env-1")

# Prints numbered lines until its input ends: less in a second than is retained for a client that is away.
NUMBERS = """
import select, sys
number = 0
while not select.select([0], [], [], 0.01)[0]:
    for _ in range(50):
        sys.stdout.write(f"{number}\\n")
        number += 1
    sys.stdout.flush()
"""


@pytest.fixture(autouse=True)
def nothing_waits_for_ever() -> Iterator[None]:
    """Raise in a test that waits for too long; many upgrades take longer than other tests here."""
    with gevent.Timeout(1_900 if LONG else 150, WaitedTooLong):
        yield


def become(server: Running, *words: str) -> str:
    """Upgrade a server while this program's greenlets go on; return what is said about it."""
    return str(gevent.get_hub().threadpool.apply(upgraded, (server, *words)))


def become_and_connect(relay: Relay, executor: RemoteProcess) -> None:
    """Upgrade an executor, and wait for its new connection: what this relay gets before is lost."""
    before = len(relay.executors)
    become(executor)
    wait_until(lambda: len(relay.executors) > before, pause=gevent.sleep)


def come_back(client: ExecServerClient) -> None:
    """Wait for the new program: what fails with the stream of the old one is asked again."""
    for _ in range(5):
        with suppress(TransportClosed):
            client.environment_status()
            return
    raise AssertionError("no connection to the new program stays")


def stay(server: Running, *words: str) -> str:
    """Ask in vain; return why."""
    return str(gevent.get_hub().threadpool.apply(refused, (server, *words)))


def lines_of(process: ClientProcess) -> tuple[int, str]:
    """Return how many lines a process printed, and the digest of its output."""
    digest, lines = hashlib.sha256(), 0
    for event in process:
        if isinstance(event, Output):
            digest.update(event.data)
            lines += event.data.count(b"\n")
    return lines, digest.hexdigest()


def numbered(lines: int) -> str:
    """Return the digest of so many lines."""
    return hashlib.sha256(b"".join(b"%d\n" % number for number in range(lines))).hexdigest()


@pytest.mark.timeout(2000)
def test_numbered_output_comes_once_and_in_order_through_our_relay() -> None:
    with RemoteScene() as scene, scene.connect() as client, scene.connect() as other:
        server, session = scene.running, client.session_id
        streams = [
            client.start([sys.executable, "-c", NUMBERS], pipe_stdin=True),
            other.start([sys.executable, "-c", NUMBERS], pipe_stdin=True),
        ]
        found = [gevent.spawn(lines_of, stream) for stream in streams]
        echo = client.start(["cat"], pipe_stdin=True)
        sent = b""
        for number in range(UPGRADES):
            piece = b"%d " % number * 2_000
            echo.write(piece)
            sent += piece
            assert "going on: 2 sessions, 3 processes" in become(server)
        for stream in streams:
            stream.close_stdin()
        for each in found:
            lines, digest = each.get()
            assert digest == numbered(lines)
        echo.close_stdin()
        assert output(echo) == sent
        assert client.session_id == session
        # One registration; each program has one connection of its own.
        assert server.errors().count("registered as environment") == 1
        assert server.errors().count("connected to ws") == UPGRADES + 1


def test_a_plain_harness_is_told_at_once_that_its_stream_is_over(
    relay: Relay, executor: RemoteProcess
) -> None:
    harness = RawHarness(relay)
    harness.send(b'{"id":1,"method":"initialize","params":{"clientName":"raw","resumeSessionId":null}}')
    session = json.loads(harness.next())["result"]["sessionId"]
    become(executor)
    assert harness.next() == "noise_relay_protocol_error"
    again = RawHarness(relay)  # by the same registration, and to the same key
    resumed = {"id": 1, "method": "initialize", "params": {"clientName": "raw", "resumeSessionId": session}}
    again.send(json.dumps(resumed).encode())
    assert json.loads(again.next())["result"]["sessionId"] == session
    assert len(relay.asked("register")) == 1
    harness.close()
    again.close()


def test_the_environment_keeps_its_key_when_it_registers_again(relay: Relay, executor: RemoteProcess) -> None:
    become(executor)
    executor.says("upgraded from")
    wait_until(lambda: len(relay.executors) == 2, pause=gevent.sleep)
    relay.upgrade_status = 401
    relay.executor.drop()
    wait_until(lambda: len(relay.asked("register")) == 2, pause=gevent.sleep)
    relay.upgrade_status = 101
    first, second = relay.asked("register")
    assert first.body == second.body
    assert second.headers["authorization"] == f"Bearer {API_KEY}"
    become_and_connect(relay, executor)  # the second registration goes along as well
    with connect(relay) as client:
        assert client.start(["echo", "on"]).communicate().stdout == b"on\n"
    assert len(relay.asked("register")) == 2


def test_while_the_relay_cannot_be_reached() -> None:
    with RemoteScene() as scene, scene.connect() as client:
        stream = client.start([sys.executable, "-c", NUMBERS], pipe_stdin=True)
        found = gevent.spawn(lines_of, stream)
        scene.executor_way.open_for_new = False
        scene.executor_way.cut()
        scene.until(lambda: b"reconnecting in" in scene.log())
        become(scene.running)
        scene.executor_way.open_for_new = True
        scene.until(lambda: scene.log().count(b"connected to ws") == 2)
        stream.close_stdin()
        lines, digest = found.get()
        assert digest == numbered(lines)


def test_while_it_registers(relay: Relay) -> None:
    """Nobody knows a key of it yet, so the new program makes one."""
    relay.replies["register"] = lambda call: Reply(503)
    with RemoteProcess(relay.url) as executor:
        executor.says("registering again in")
        wait_until(lambda: can_be_asked(executor.pid), pause=gevent.sleep)
        assert "going on: 0 sessions, 0 processes" in become(executor)
        del relay.replies["register"]
        relay.replies["register"] = relay._register
        executor.says("waiting for a harness")
        with connect(relay) as client:
            assert client.start(["echo", "here"]).communicate().stdout == b"here\n"


def test_while_the_registry_has_not_answered(relay: Relay) -> None:
    relay.replies["register"] = lambda call: Reply(200, None, delay_s=3600)
    with RemoteProcess(relay.url) as executor:
        wait_until(lambda: len(relay.asked("register")) == 1, pause=gevent.sleep)
        wait_until(lambda: can_be_asked(executor.pid), pause=gevent.sleep)
        relay.replies["register"] = relay._register
        become(executor)
        executor.says("waiting for a harness")


def can_be_asked(pid: int) -> bool:
    """Tell whether a server takes requests for upgrades."""
    return f"@execserver-upgrade-{pid}\n" in Path("/proc/net/unix").read_text()


def test_a_refused_upgrade_leaves_the_connection_alone(
    relay: Relay, executor: RemoteProcess, tmp_path: Path
) -> None:
    """Whether the program cannot read the state, must not be run, or fails when all is packed."""
    with connect(relay) as client:
        cat = client.start(["cat"], pipe_stdin=True)
        older = program(tmp_path / "older", "echo execserver resumes 1", agrees=False)
        assert "cannot take over: execserver resumes 1" in stay(executor, str(older))
        planted = program(tmp_path / "planted", f"touch {tmp_path}/ran")
        planted.chmod(0o777)
        assert "can be written by others" in stay(executor, str(planted))
        lost = program_that_cannot_run(tmp_path)
        assert f"{lost} cannot be executed: No such file or directory" in stay(executor, str(lost))
        assert cat.communicate(b"still here\n").stdout == b"still here\n"
        assert client.resumptions == 0
    assert not (tmp_path / "ran").exists()
    assert len(relay.executors) == 1
    assert len(relay.harnesses) == 1


def test_sighup_upgrades_where_that_was_asked_for(relay: Relay) -> None:
    with RemoteProcess(relay.url, (*FOR, "--upgrade-on-hup")) as executor:
        executor.says("waiting for a harness")
        with connect(relay) as client:
            cat = client.start(["cat"], pipe_stdin=True)
            executor.process.send_signal(signal.SIGHUP)
            executor.says("upgraded from")
            assert cat.communicate(b"still here\n").stdout == b"still here\n"
        assert executor.stop() == 0


def test_an_upgrade_is_in_the_audit_log(relay: Relay, tmp_path: Path) -> None:
    folder = str(tmp_path / "audit")
    with RemoteProcess(relay.url, (*FOR, "--audit", folder)) as executor:
        executor.says("waiting for a harness")
        with connect(relay) as client:
            process = client.start(["sleep", "100"])
            stay(executor, str(program(tmp_path / "none", agrees=False)))
            become(executor)
            come_back(client)
            process.terminate()
            process.communicate()
        executor.stop()
    found = [record["event"] for record in records(folder)]
    assert [event for event in found if event in ("begin", "start", "upgrade-refused", "upgrade")] == [
        *("begin", "start", "upgrade-refused", "upgrade", "begin"),
    ]
    assert verify(folder, None).torn == 0
    assert API_KEY not in "".join(file.read_text() for file in Path(folder).iterdir())


def test_no_secret_is_in_an_environment_a_command_line_or_a_descriptor(relay: Relay, tmp_path: Path) -> None:
    """Neither of the server, nor of what it asks, nor of what it starts; and it is closed to others."""
    asked = program(tmp_path / "new", f"cat /proc/self/environ > {tmp_path}/environ")
    with RemoteProcess(relay.url) as executor:
        executor.says("waiting for a harness")
        with connect(relay) as client:
            before = client.start(["sleep", "100"])
            become(executor, str(asked))
            become(executor)
            come_back(client)
            behind = client.start(["sleep", "100"])
            client.start(["true"]).communicate()
            running = [executor.pid, *proc.descendants_of(executor.pid)]
            commands = [pid for pid in running if proc.command_line(pid) == b"sleep\x00100\x00"]
            assert len(commands) == 2
            seen = b"".join(map(shown_by, running)) + (tmp_path / "environ").read_bytes()
            assert b"PATH=" in seen  # what could be looked at was
            assert API_KEY.encode() not in seen
            assert not [pid for pid in commands if proc.descriptor_count(pid) != 3]
            opened = [name for pid in running for name in proc.descriptors(pid).values()]
            assert not [name for name in opened if "execserver-state" in name]
            for process in (before, behind):
                process.terminate()
                process.communicate()
    for verb in ("register", "validate"):
        assert {call.headers["authorization"] for call in relay.asked(verb)} == {f"Bearer {API_KEY}"}


def shown_by(pid: int) -> bytes:
    """Return what /proc shows of a process's start."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))


def test_an_agent_identity_signs_on_without_asking_anybody(relay: Relay, tmp_path: Path) -> None:
    issuer = Issuer()
    now = time.time()
    token = issuer.token(claims(iat=now, exp=now + 600))
    hosts = ChatGptHosts(tmp_path, issuer)
    try:
        env = {**hosts.environ, "CODEX_ACCESS_TOKEN": token, "CODEX_HOME": str(tmp_path)}
        with RemoteProcess(relay.url, (*FOR, "--use-agent-identity-auth"), env=env) as executor:
            executor.says("waiting for a harness")
            become_and_connect(relay, executor)
            assert token.encode() not in shown_by(executor.pid)
            with connect(relay) as client:
                assert client.start(["echo", "x"]).communicate().stdout == b"x\n"
        assert hosts.tunnels == ["chatgpt.com:443", "auth.openai.com:443"]
    finally:
        hosts.close()
    (call,) = relay.asked("validate")
    check_assertion(call.headers["authorization"], "task-1")


def test_a_credential_on_stdin_goes_along_and_later_ones_replace_it(relay: Relay) -> None:
    """The second one comes in two pieces, with the upgrade in between."""

    def frame(token: str) -> bytes:
        members = {
            "version": 1,
            "environment_id": "env-1",
            "token": token,
            "expires_at": int(time.time()) + 600,
        }
        return json.dumps(members).encode() + b"\n"

    reader, writer = os.pipe()
    with RemoteProcess(relay.url, (*FOR, "--executor-credential-stdin"), stdin=reader) as executor:
        os.close(reader)
        os.write(writer, frame("first-token"))
        executor.says("waiting for a harness")
        os.write(writer, frame("second-token")[:20])
        become_and_connect(relay, executor)
        connect(relay).close()
        os.write(writer, frame("second-token")[20:])
        become_and_connect(relay, executor)
        connect(relay).close()
        os.close(writer)
        assert executor.wait() == 0
    shown = [call.headers["authorization"] for call in relay.asked("validate")]
    assert shown == ["Bearer first-token", "Bearer second-token"]


def test_the_older_form_is_started_anew(relay: Relay) -> None:
    env = {"CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN": "of-the-executor"}
    with RemoteProcess(relay.url, ("--executor-id", "e"), env=env) as executor:
        executor.says("waiting for a harness")
        assert "no server of yours with pid" in stay(executor)
