"""Attacks on a network proxy, each with real sockets on both sides."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import gevent
import pytest
from gevent import socket

from execserver.egress.decisions import BY_CLIENT, Question, Verdict
from execserver.egress.policy import EgressPolicy
from execserver.egress.rules_file import parse_rules
from tests.egress.test_tls_hello import hello
from tests.support.egress_scene import (
    HELLO,
    PUBLIC,
    Names,
    get,
    heard,
    rules,
    scene,
    socks_name,
    tunnel,
    upstream,
)
from tests.support.waiting import wait_until

REFUSED = bytes.fromhex("050005020001000000000000")  # greeting taken, then "not allowed"
FAILED = bytes.fromhex("050005010001000000000000")


# Names


@pytest.mark.parametrize(
    "name",
    [
        b"blocked.example\0.allowed.example",
        b"allowed.example\0",
        b"allowed%2eexample",
        b"allowed.example%00",
        b"all owed.example",
        b"fe80::1%lo",
        "bücher.example".encode(),
    ],
)
def test_a_socks_name_that_two_programs_read_in_two_ways_is_refused(name: bytes) -> None:
    with scene(rules("*")) as here:
        assert here.say(socks_name(name), socks=True) == FAILED
        assert here.names.asked == []


@pytest.mark.parametrize("host", ["ALLOWED.example", "allowed.example.", "Allowed.Example.."])
def test_case_and_final_dots_change_nothing(host: str) -> None:
    names = Names(allowed_example=[[PUBLIC], ["127.0.0.1"]])
    with scene(rules("allowed.example", denied=("**.blocked.example",)), names) as here:
        assert here.status(get(host)) == 403  # it was let through, and rebound
        assert here.status(get(host.lower().replace("allowed", "blocked"))) == 403
        assert here.reasons == ["allow", "policy_denied", "denied"]


def test_punycode_is_the_name_it_stands_for() -> None:
    with scene(rules("*", denied=("bücher.example",))) as here:
        assert here.status(get("xn--bcher-kva.example")) == 403
        assert here.reasons == ["denied"]


# Addresses


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "0x7f000001",
            "localhost",
            "localhost.",
        ),
        *("169.254.169.254", "0xa9fea9fe", "2852039166", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]"),
        *("[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[fe80::1]", "0.0.0.0", "100.64.0.1"),
    ],
)
def test_no_spelling_of_a_local_address_gets_through(host: str) -> None:
    with scene(rules("*")) as here:
        assert here.status(get(host)) == 403
        assert here.status(tunnel(f"{host}:443")) == 403
        assert here.reasons == ["not_allowed_local"] * 2


@pytest.mark.parametrize("name", [b"127.0.0.1", b"2130706433", b"0x7f.1", b"localhost", b"::1"])
def test_socks_names_that_are_addresses_are_addresses(name: bytes) -> None:
    with scene(rules("*")) as here:
        assert here.say(socks_name(name), socks=True) == REFUSED
        assert here.reasons == ["not_allowed_local"]


def test_a_scoped_address_is_no_host() -> None:
    with scene(rules("*")) as here:
        assert here.status(b"GET http://[fe80::1%25lo]/ HTTP/1.1\r\nHost: [fe80::1%25lo]\r\n\r\n") == 400


def test_a_name_that_is_rebound_between_look_up_and_connect_is_refused() -> None:
    names = Names(a_example=[[PUBLIC], ["127.0.0.1"]])
    with scene(rules("*"), names) as here, upstream() as server:
        answer = here.say(get(f"a.example:{server.port}"))
        assert b"policy_denied" in answer
        assert here.reasons == ["allow", "policy_denied"]
        assert server.received == []


def test_a_rebound_tunnel_is_closed_without_a_byte() -> None:
    names = Names(a_example=[[PUBLIC], ["127.0.0.1"]])
    with scene(rules("*"), names) as here, upstream() as server:
        answer = here.say(tunnel(f"a.example:{server.port}") + b"hello")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n")
        assert server.received == []


def test_the_connection_goes_to_the_judged_address_and_asks_no_third_time() -> None:
    names = Names(localhost=[["127.0.0.1"], ["127.0.0.1"], ["192.0.2.1"]])
    with scene(rules("localhost"), names) as here, upstream() as server:
        assert here.status(get(f"localhost:{server.port}")) == 200
        assert names.asked == ["localhost"] * 2


def test_a_name_is_reached_at_the_local_address_that_the_machine_names_with_it_and_at_no_other() -> None:
    with upstream() as server:
        text = f'allow = ["http://{{}}:{server.port}", "http://127.0.0.1:{server.port}"]'
        machine = parse_rules(text.format("index.corp")).of("")
        names = Names(index_corp=[["127.0.0.1"], ["127.0.0.1"], ["127.0.0.1"], ["127.0.0.2"]])
        with scene(EgressPolicy((), machine=machine), names) as here:
            assert here.status(get(f"index.corp:{server.port}")) == 200
            assert here.status(get(f"index.corp:{server.port}")) == 403
            assert here.reasons == ["allow", "allow", "policy_denied"]
        machine = parse_rules(text.format("*.corp")).of("")
        with scene(EgressPolicy((), machine=machine), Names(evil_corp=[["127.0.0.1"]])) as here:
            assert here.status(get(f"evil.corp:{server.port}")) == 403
            assert here.reasons == ["not_allowed_local"]
        assert len(server.received) == 1


def test_an_alias_of_a_private_name_is_judged_by_its_address() -> None:
    with scene(rules("*"), Names(alias_example=[["10.0.0.5"]], both_example=[[PUBLIC, "10.0.0.5"]])) as here:
        assert here.status(get("alias.example")) == 403
        assert here.status(get("both.example")) == 403
        assert here.reasons == ["not_allowed_local"] * 2


def test_a_redirect_to_a_private_address_is_a_request_of_its_own() -> None:
    redirect = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    with scene(rules("127.0.0.1")) as here, upstream(redirect) as server, here.connection() as sock:
        sock.sendall(get(server.place))
        assert b"302 Found" in sock.recv(4096)
        sock.sendall(get("169.254.169.254"))
        assert b"not_allowed_local" in heard(sock)


def test_a_yes_of_the_client_allows_no_private_address() -> None:
    asked: list[Question] = []

    def ask(question: Question) -> Verdict:
        asked.append(question)
        return BY_CLIENT

    with scene(rules(), Names(a_example=[["10.0.0.1"]]), ask) as here:
        assert here.status(get("a.example")) == 403
        assert here.status(get("10.0.0.1")) == 403
        assert here.reasons == ["not_allowed_local"] * 2
        assert [question.host for question in asked] == ["a.example"]


# Ourselves


@pytest.mark.parametrize("policy", [rules("127.0.0.1", "localhost"), rules("*", local=True)])
def test_the_proxy_connects_neither_to_itself_nor_to_the_server(policy: EgressPolicy) -> None:
    names = Names(localhost=[["127.0.0.1"]], mine_example=[["127.0.0.1"]])
    with upstream() as server, scene(policy, names, own=("127.0.0.1", server.port)) as here:
        for port in (here.proxy.http_port, here.proxy.socks_port, server.port):
            assert here.status(get(f"127.0.0.1:{port}")) == 403
            assert here.status(get(f"localhost:{port}")) == 403
        assert set(here.reasons) == {"allow", "policy_denied"}
        assert server.received == []


# Heads and bodies


def test_another_host_than_the_target_is_refused() -> None:
    with scene(rules("*")) as here:
        request = b"GET http://allowed.example/ HTTP/1.1\r\nHost: blocked.example\r\n\r\n"
        assert here.status(request) == 400
        assert (
            here.status(b"CONNECT allowed.example:443 HTTP/1.1\r\nHost: blocked.example:443\r\n\r\n") == 400
        )
        assert here.records == []


def test_nothing_is_smuggled_behind_a_body_with_two_ends() -> None:
    smuggled = b"0\r\n\r\nGET http://blocked.example/ HTTP/1.1\r\nHost: blocked.example\r\n\r\n"
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        for fields in (
            ("Content-Length: 5", "Transfer-Encoding: chunked"),
            ("Content-Length: 5", "Content-Length: 80"),
            ("Transfer-Encoding: chunked, identity",),
            ("Transfer-Encoding : chunked",),
            ("Content-Length: 5\nX: y",),
        ):
            answer = here.say(get(server.place, *fields, method="POST") + smuggled)
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\nconnection: close")
            assert answer.count(b"HTTP/1.1") == 1
        assert server.received == []
        assert here.records == []


def test_what_is_behind_a_request_is_judged_as_one() -> None:
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        answer = here.say(get(server.place) + get("blocked.example"))
        assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"403"]
        assert b"blocked.example" not in b"".join(server.received)


def test_a_chunked_body_is_passed_on_in_chunks_of_ours() -> None:
    body = b"3;x=y\r\nabc\r\n0\r\nTrailer: x\r\n\r\n"
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        request = get(server.place, "Transfer-Encoding: chunked", "Connection: close", method="POST")
        assert here.status(request + body) == 200
        head, _, sent = server.received[0].partition(b"\r\n\r\n")
        assert sent == b"3\r\nabc\r\n0\r\n\r\n"
        assert head.lower().count(b"transfer-encoding") == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/0.9 what\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_an_answer_with_two_ends_is_not_passed_on(answer: bytes) -> None:
    with scene(rules("127.0.0.1")) as here, upstream(answer) as server:
        assert here.say(get(server.place, "Connection: close")).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


def test_what_a_server_sends_behind_its_answer_reaches_nobody() -> None:
    twice = HELLO + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
    with scene(rules("127.0.0.1")) as here, upstream(twice) as server:
        assert b"forged" not in here.say(get(server.place) + get(server.place))


def test_an_upgrade_is_no_way_out_of_plain_requests() -> None:
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        assert here.status(get(server.place, "Upgrade: websocket", "Connection: Upgrade")) == 200
        assert b"pgrade" not in server.received[0]


def test_secrets_for_the_proxy_are_not_passed_on() -> None:
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        here.say(get(server.place, "Proxy-Authorization: Basic c2VjcmV0", "Connection: close"))
        assert b"c2VjcmV0" not in server.received[0]


def test_a_decision_names_no_path_and_no_query() -> None:
    with scene(rules("127.0.0.1")) as here, upstream() as server:
        here.status(get(server.place, path="/secret?token=1"))
        record = here.records[0]
        members = [record.client, record.method, record.question.host, record.verdict.reason]
        assert not any("secret" in str(member) for member in members)


# Inside of a tunnel


@pytest.mark.parametrize(
    ("name", "passes"),
    [("localhost", True), ("allowed.example", True), ("blocked.example", False), (None, True)],
)
def test_tls_for_another_host_than_that_of_the_tunnel_is_judged_like_it(
    name: str | None, passes: bool
) -> None:
    received: list[bytes] = []

    def note(sock: socket.socket) -> None:
        received.append(sock.recv(4096))

    names = Names(localhost=[["127.0.0.1"]])
    data = hello(name)
    with scene(rules("localhost", "allowed.example"), names) as here, upstream(note) as server:
        for cut in (len(data), 1, 80):
            received.clear()
            with here.connection() as sock:
                sock.sendall(tunnel(f"localhost:{server.port}"))
                assert sock.recv(4096).startswith(b"HTTP/1.1 200")
                sock.sendall(data[:cut])
                gevent.sleep(0.02)
                with suppress(OSError):
                    sock.sendall(data[cut:])
                    sock.recv(1)
            wait_until(lambda: bool(received), pause=gevent.sleep)
            assert [one[:1] for one in received] == ([b"\x16"] if passes else [b""])
    reasons = [(record.question.host, record.verdict.reason) for record in here.records]
    assert (("blocked.example", "not_allowed") in reasons) is not passes


# Whose port


def test_after_the_end_of_the_process_nobody_is_served() -> None:
    with scene(rules("*")) as here:
        sock = here.connection()
        wait_until(lambda: len(here.proxy._connections) == 1, pause=gevent.sleep)
        here.proxy.close()
        assert sock.recv(100) == b""
        sock.close()
        with pytest.raises(OSError, match="refused"):
            here.connection()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_is_not_served() -> None:
    code = (
        "import os,socket,sys; os.setgid(65534); os.setuid(65534)\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "s.sendall(b'GET http://a/ HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')\n"
        "try: print(len(s.recv(100)))\n"
        "except OSError: print(0)\n"
    )
    with scene(rules("*")) as here:
        found = []
        for leader in (1 << 30, os.getpid()):
            here.proxy.leader = leader
            command = [sys.executable, "-c", code, str(here.proxy.http_port)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
                while child.poll() is None:
                    gevent.sleep(0.01)
                assert child.stdout is not None
                found.append(int(child.stdout.read()) > 0)
            here.service.peers._strangers.clear()
        # A stranger's connection is closed unheard; a descendant of the process is served as whoever it is.
        assert found == [False, True]
