"""Beginning and end: drain, restart with and without state, certificates, the command line, logs."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
from pathlib import Path

import pytest

from execserver.wire.close_codes import GOING_AWAY
from execserver.wire.relay_frames import RESET_EXECUTOR_LOST, Data, Handshake, RelayFrame, Resume
from tests.support.certificates import make_authority
from tests.support.relay_process import (
    ENVIRONMENT,
    Peer,
    Refused,
    RelayProcess,
    key_object,
    program,
)
from tests.support.server_process import base_environment
from tests.support.waiting import wait_until


def test_a_drain_tells_everybody_and_ends() -> None:
    with RelayProcess(limits={"drain_s": 60.0}) as relay:
        token = relay.token()
        with relay.executor(token) as executor, relay.harness(token) as harness:
            url = relay.register(relay.token("box-2"), environment_id="box-2")["url"]
            relay.process.send_signal(signal.SIGTERM)
            wait_until(lambda: relay.request("GET", "/readyz")[0] == 503)
            status, answer = relay.call(ENVIRONMENT, "connect", {}, token)
            assert (status, answer["error"]["code"]) == (503, "relay_draining")
            with pytest.raises(Refused) as refused:
                Peer(url)
            assert refused.value.status == 503
            assert refused.value.headers["x-codex-rendezvous-rejection-reason"] == "pod_draining"
            harness.send("a", Handshake(b"still works"))
            assert executor.receive().body == Handshake(b"still works")
            relay.process.send_signal(signal.SIGTERM)  # a second one skips what is left of the wait
            assert harness.wait_for_end() == []
            executor.wait_for_end()
            assert (harness.close_code, executor.close_code) == (GOING_AWAY, GOING_AWAY)
        assert relay.process.wait(20) == 0


def test_a_peer_that_does_not_say_goodbye_is_not_waited_for() -> None:
    limits = {"drain_s": 0, "close_timeout_s": 0.3}
    with RelayProcess(limits=limits) as relay, relay.executor(relay.token()):
        relay.process.send_signal(signal.SIGTERM)
        assert relay.process.wait(20) == 0


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_relay_keeps_its_registrations_and_streams_go_on(
    tmp_path: Path, ending: signal.Signals
) -> None:
    words = ("--state", str(tmp_path / "state.db"))
    relay = RelayProcess(*words, folder=tmp_path, limits={"drain_s": 0, "close_timeout_s": 0.2})
    token = relay.token()
    registered, port = relay.register(token), relay.port
    with Peer(registered["url"]) as executor, relay.harness(token) as harness:
        harness.send("a", Handshake(b"x"))
        assert executor.receive().stream_id == "a"
        granted = relay.grant(token)
        relay.process.send_signal(ending)
        relay.process.wait(20)
        relay.kill()
        harness.wait_for_end(), executor.wait_for_end()
    with (
        RelayProcess(*words, folder=tmp_path, listen=f"http://127.0.0.1:{port}") as relay,
        Peer(registered["url"]) as executor,
        Peer(granted["url"]) as harness,
    ):
        executor.send("a", Data(0, b"nobody is there yet"))
        wait_until(lambda: relay.metric('execserver_relay_dropped_frames_total{reason="no_harness"}') == 1)
        harness.send("a", Resume(1))
        assert executor.receive() == RelayFrame("a", Resume(1))
        executor.send("a", Data(1, b"on"))
        assert harness.receive() == RelayFrame("a", Data(1, b"on"))
        again = relay.grant(token)
        assert again["executor_registration_id"] == registered["executor_registration_id"]


def test_without_state_an_executor_has_to_register_again(tmp_path: Path) -> None:
    relay = RelayProcess(folder=tmp_path)
    token, port = relay.token(), relay.port
    url = relay.register(token)["url"]
    relay.stop()
    with RelayProcess(folder=tmp_path, listen=f"http://127.0.0.1:{port}") as relay:
        with pytest.raises(Refused) as refused:
            Peer(url)
        assert refused.value.status == 401
        with relay.executor(token):
            pass


def test_superseded_keys_are_remembered_over_a_restart(tmp_path: Path) -> None:
    words = ("--state", str(tmp_path / "state.db"))
    relay = RelayProcess(*words, folder=tmp_path)
    token = relay.token()
    relay.register(token, 1), relay.register(token, 2)
    relay.stop()
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600
    with RelayProcess(*words, folder=tmp_path) as relay:
        body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(1)}
        assert relay.call(ENVIRONMENT, "register", body, token)[0] == 409


def test_tls_and_a_certificate_that_is_renewed(tmp_path: Path) -> None:
    authority = make_authority()
    pem = tmp_path / "server.pem"
    pem.write_bytes(authority.issue("127.0.0.1"))
    context = ssl.create_default_context(cadata=authority.pem.decode())
    words = ("--tls-cert", str(pem), "--tls-key", str(pem))
    with RelayProcess(*words, listen="https://127.0.0.1:0") as relay:
        assert relay.url == f"https://127.0.0.1:{relay.port}"
        relay.tls = context
        token = relay.token()
        url = relay.register(token)["url"]
        assert url.startswith(f"wss://127.0.0.1:{relay.port}/")
        with Peer(url, context) as executor, Peer(relay.grant(token)["url"], context) as harness:
            harness.send("a", Handshake(b"x"))
            executor.receive()
            for number in range(40):
                for peer, reader, size in ((executor, harness, 61_456), (harness, executor, 200_000)):
                    sent = [Data(number, bytes(size)), Data(number, b"small")]
                    for body in sent:
                        peer.send("a", body)
                    assert [reader.receive().body for _ in sent] == sent
            other = make_authority()
            pem.write_bytes(other.issue("127.0.0.1"))
            relay.process.send_signal(signal.SIGHUP)
            relay.tls = ssl.create_default_context(cadata=other.pem.decode())
            wait_until(lambda: "reloaded" in relay.errors().rpartition("executor connected")[2])
            assert relay.request("GET", "/readyz")[0] == 200
            harness.send("a", Data(99, b"old connections go on"))
            assert executor.receive().body == Data(99, b"old connections go on")
            pem.write_text("nonsense")
            relay.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "reload failed" in relay.errors())
            assert relay.request("GET", "/readyz")[0] == 200


def test_tls_that_never_speaks_and_plain_text_on_the_tls_port(tmp_path: Path) -> None:
    authority = make_authority()
    pem = tmp_path / "server.pem"
    pem.write_bytes(authority.issue("127.0.0.1"))
    words = ("--tls-cert", str(pem), "--tls-key", str(pem))
    limits = {"request_timeout_s": 2.0}  # in which the last request has to make it on a busy machine, too
    with RelayProcess(*words, listen="https://127.0.0.1:0", limits=limits) as relay:
        import socket

        with socket.create_connection(("127.0.0.1", relay.port), 10) as silent:
            assert silent.recv(10) == b""
        with socket.create_connection(("127.0.0.1", relay.port), 10) as plain:
            plain.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                assert b"200" not in plain.recv(1000)
            except ConnectionResetError:
                pass
        relay.tls = ssl.create_default_context(cadata=authority.pem.decode())
        assert relay.request("GET", "/readyz")[0] == 200


def test_no_secret_is_in_the_log_or_the_state(tmp_path: Path) -> None:
    words = ("--state", str(tmp_path / "state.db"), "--log-level", "debug")
    relay = RelayProcess(*words, folder=tmp_path)
    token = relay.token()
    registered = relay.register(token)
    with Peer(registered["url"]) as executor:
        granted = relay.grant(token)
        with Peer(granted["url"]) as harness:
            harness.send("a", Handshake(b"x"))
            executor.receive()
        for url in (granted["url"] + "x", f"ws://127.0.0.1:{relay.port}/rendezvous/box-1?token=h-almost"):
            with pytest.raises(Refused):
                Peer(url)
        relay.call(ENVIRONMENT, "register", {}, "esr-0123456789ab-" + "B" * 43)
    page = relay.request("GET", "/metrics")[2].decode()
    said = relay.errors()
    relay.stop()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    secrets = [
        token[17:],
        *(url.partition("token=")[2] for url in (registered["url"], granted["url"])),
        granted["harness_key_authorization"],
        "B" * 43,
        "h-almost",
    ]
    assert "executor connected" in said
    for secret in secrets:
        assert secret not in said
        assert secret not in page
        assert secret.encode() not in stored


def test_the_log_can_be_json() -> None:
    with RelayProcess("--log-format", "json") as relay:
        relay.register(relay.token())
        assert '"message":"executor registered' in relay.errors().replace('": "', '":"')


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--listen", "http://0.0.0.0:0"], 1, "would send tokens in the clear"),
        (["--listen", "https://127.0.0.1:0"], 1, "needs --tls-cert and --tls-key"),
        (["--listen", "http://127.0.0.1:0", "--tls-cert", "x"], 1, "takes neither"),
        (["--listen", "ws://127.0.0.1:0"], 1, "invalid --listen URL `ws://127.0.0.1:0`"),
        (["--listen", "http://localhost:0"], 1, "expected `http://IP:PORT` or `https://IP:PORT`"),
        (["--rate", "-1"], 2, "unexpected argument '-1' found"),
        (["--rate", "x"], 2, "expected a whole number"),
        (["--wrong"], 2, "unexpected argument '--wrong' found"),
        (["--public-url", "relay"], 1, "invalid --public-url"),
        (["--token-file", "/nonexistent/tokens.json"], 1, "/nonexistent/tokens.json: No such file"),
        (["token"], 2, "an action is missing"),
        (["token", "make"], 2, "unexpected argument 'make' found"),
        (["token", "create"], 2, "--environment-id <ID>"),
        (["token", "create", "--environment-id", "a/b"], 1, "letters, digits"),
        (["token", "revoke"], 2, "<TOKEN-ID>"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path: Path, words: list[str], status: int, text: str) -> None:
    env = {**base_environment(), "XDG_CONFIG_HOME": str(tmp_path)}
    command = [*program(), "relay", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_the_state_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("this is no database, and long enough to be looked at" * 100)
    with pytest.raises(AssertionError, match=r"state\.db: file is not a database"):
        RelayProcess("--state", str(tmp_path / "state.db"), folder=tmp_path)


def test_tokens_from_the_command_line(tmp_path: Path) -> None:
    env = {**base_environment(), "XDG_CONFIG_HOME": str(tmp_path)}

    def run(*words: str) -> str:
        command = [*program(), "relay", "token", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=True).stdout

    text = run("create", "--environment-id", "box", "--role", "harness").strip()
    assert re.fullmatch(r"esr-[0-9a-f]{12}-[A-Za-z0-9_-]{43}", text)
    (line,) = run("list").splitlines()
    assert line.split()[:2] == [text.split("-")[1], "harness"]
    assert line.endswith("  box")
    assert text[17:] not in (tmp_path / "execserver" / "relay-tokens.json").read_text()
    run("revoke", text.split("-")[1])
    assert run("list") == ""
    assert "--environment-id" in run("--help")


def test_a_lost_executor_is_told_before_a_restart_is_noticed(relay: RelayProcess, token: str) -> None:
    with relay.executor(token) as executor, relay.harness(token) as harness:
        harness.send("a", Handshake(b"x"))
        executor.receive()
        relay.process.send_signal(signal.SIGTERM)
        frames = harness.wait_for_end()
        assert len(frames) <= 1  # the executor may have gone first
        assert all(RESET_EXECUTOR_LOST.encode() in frame for frame in frames)


def test_a_state_file_that_fails_is_answered_and_told(tmp_path: Path) -> None:
    import sqlite3

    path = str(tmp_path / "state.db")
    with RelayProcess("--state", path, folder=tmp_path) as relay:
        token = relay.token()
        with sqlite3.connect(path) as other:
            other.execute("DROP TABLE registrations")
        other.close()
        body = {"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key_object(1)}
        status, answer = relay.call(ENVIRONMENT, "register", body, token)
        assert (status, answer["error"]["code"]) == (503, "state_unavailable")
        assert "no such table" in relay.errors()
        assert relay.request("GET", "/readyz")[0] == 200
