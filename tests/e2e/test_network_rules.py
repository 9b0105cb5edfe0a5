"""`--network-rules` of a real server: what commands reach, and what they are told of the rest."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.access.tokens import store
from execserver.access.tokens.caveats import caveats
from execserver.access.tokens.chain import Token, narrowed
from execserver.runtime_paths import token_stores
from execserver.sandbox.proxy.routes import HTTP_PORT
from tests.support.accounts import own_cache
from tests.support.peer import Json, Peer, RemoteError
from tests.support.proxy_settings import proxy_settings
from tests.support.running import PATH, outcome, run, start
from tests.support.sandboxes import context, managed, special
from tests.support.server_process import ServerProcess, base_environment
from tests.support.small_web import Web, small_web
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

FETCH = """
import sys, urllib.request as r
for url in sys.argv[1:]:
    try:
        print(r.urlopen(url, timeout=5).read().decode())
    except r.HTTPError as error:
        print(error.code, error.read().decode())
    except OSError as error:
        print(error)
"""
DIRECT = "import socket, sys; print(socket.socket().connect_ex((sys.argv[1], int(sys.argv[2]))))"


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with small_web() as web:
        yield web


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "log"


@pytest.fixture(scope="module")
def server(web: Web, audit: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    rules = tmp_path_factory.mktemp("rules") / "rules.toml"
    # Addresses of this machine are reached only where a rule names exactly them.
    rules.write_text(
        f'allow = ["http://127.0.0.1:{web.port}"]\ndeny = ["bad.example"]\nreview = ["review.example"]\n'
    )
    with ServerProcess(options=("--network-rules", str(rules), "--audit", str(audit))) as running:
        yield running


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[Peer]:
    with server.connect() as connection:
        connection.open_session()
        yield connection


SANDBOXES: list[Json | None] = [
    None,
    {"type": "disabled"},
    managed(special("root", "read"), network="enabled"),
]


def fetched(peer: Peer, sandbox: Json | None, *urls: str) -> list[str]:
    given = {} if sandbox is None else {"sandbox": context(sandbox, Path("/tmp"))}
    found = run(peer, "p", ["python3", "-c", FETCH, *urls], env=PATH, **given)
    assert found.exit_code == 0, found
    return found.stdout.decode().splitlines()


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_command_reaches_what_is_allowed_and_reads_why_not_the_rest(
    peer: Peer, web: Web, sandbox: Json | None
) -> None:
    urls = (f"http://127.0.0.1:{web.port}/x?secret=1", "http://other.example/", "http://bad.example/")
    more = ("https://other.example/", "http://review.example/")
    allowed, other, bad, tunnel, review = fetched(peer, sandbox, *urls, *more)
    assert allowed == "GET /x?secret=1 HTTP/1.1"
    assert other.startswith("403 ")
    assert (
        "other.example is in no list of the network rules of this machine; "
        'to let it through: allow = [\\"http://other.example\\"]'
    ) in other
    assert "bad.example is denied by the network rules of this machine." in bad
    assert "review.example is in review in the network rules of this machine, and nobody is asked" in review
    assert tunnel == (
        "<urlopen error Tunnel connection failed: 403 Forbidden: other.example is in no list of the network "
        'rules of this machine; to let it through: allow = ["https://other.example"]>'
    )


def test_what_was_decided_is_in_the_audit_log_without_paths(peer: Peer, web: Web, audit: Path) -> None:
    fetched(peer, None, f"http://127.0.0.1:{web.port}/x?secret=1", "http://other.example/secret")
    shown = subprocess.run(
        [sys.executable, "-m", "execserver", "network", "log", str(audit)],
        env=base_environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    last = [" ".join(line.split()[1:]) for line in shown.splitlines()][-2:]
    assert last == [
        f"p allow http://127.0.0.1:{web.port}",
        'p deny http://other.example:80 (not_allowed); to let it through: allow = ["http://other.example"]',
    ]
    assert "secret" not in shown


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_there_is_no_way_past_the_proxy(
    peer: Peer, web: Web, server: ServerProcess, sandbox: Json | None
) -> None:
    given = {} if sandbox is None else {"sandbox": context(sandbox, Path("/tmp"))}
    own = server.url.rpartition(":")[2].rstrip("/")
    for name, port in (("web", str(web.port)), ("own", own)):
        found = run(peer, name, ["python3", "-c", DIRECT, "127.0.0.1", port], env=PATH, **given)
        assert found.stdout == b"111\n"


def test_what_a_command_starts_is_led_and_held_as_it_is(peer: Peer, web: Web) -> None:
    inner = f'(python3 -c "$1" {web.port} $2 &) | cat'
    script = f"env -i PATH=$PATH http_proxy=$http_proxy sh -c '{inner}' sh \"$1\" $2"
    code = (
        "import socket, sys, urllib.request as r;"
        "print(r.urlopen(sys.argv[2]).status, socket.socket().connect_ex(('127.0.0.1', int(sys.argv[1]))))"
    )
    argv = ["sh", "-c", script, "sh", code, f"http://127.0.0.1:{web.port}/"]
    assert run(peer, "p", argv, env=PATH).stdout == b"200 111\n"


def test_start_up_files_of_a_snapshot_lead_nowhere(peer: Peer, web: Web, tmp_path: Path) -> None:
    """Not even to whoever listens outside at the port that the proxy has inside."""
    profile = tmp_path / ".bash_profile"
    profile.write_text("exec 9<>/dev/tcp/127.0.0.1/${http_proxy##*:}\n")
    snapshot = {"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}}
    argv = ["/bin/bash", "-lc", f"python3 -c '{FETCH}' http://127.0.0.1:{web.port}/"]
    with socket.socket() as outside:
        outside.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            outside.bind(("127.0.0.1", HTTP_PORT))
        except OSError:
            pytest.skip(f"port {HTTP_PORT} of this machine is another's")
        outside.listen()
        outside.setblocking(False)
        found = run(peer, "p", argv, env={**PATH, "HOME": str(tmp_path)}, shellSnapshot=snapshot)
        with pytest.raises(BlockingIOError):
            outside.accept()
    assert found.stdout == b"GET / HTTP/1.1\n"


def test_no_rule_leads_to_the_server_itself(tmp_path: Path, web: Web) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('allow = ["127.0.0.1"]')
    with ServerProcess(options=("--network-rules", str(rules))) as server, server.connect() as peer:
        peer.open_session()
        own = server.url.rpartition(":")[2].rstrip("/")
        urls = (f"http://127.0.0.1:{web.port}/", f"http://127.0.0.1:{own}/readyz")
        allowed, refused = fetched(peer, None, *urls)
    assert (allowed, refused[:4], "policy_denied" in refused) == ("GET / HTTP/1.1", "403 ", True), refused


def test_a_client_cannot_widen_the_rules(peer: Peer, web: Web) -> None:
    proxy = proxy_settings("*", "127.0.0.1", enableSocks5=True, allowUpstreamProxy=True)
    urls = (f"http://127.0.0.1:{web.port}/", "http://127.0.0.1:1/", "http://other.example/")
    start(peer, "widened", ["python3", "-c", FETCH, *urls], env=PATH, networkProxy={"proxy": proxy})
    output = b""
    wait_until(lambda: bool(peer.call("process/read", {"processId": "widened"})["closed"]), 30)
    for chunk in peer.call("process/read", {"processId": "widened"})["chunks"]:
        output += base64.b64decode(chunk["chunk"])
    allowed, *others = output.decode().splitlines()
    assert allowed == "GET / HTTP/1.1"
    assert [line[:4] for line in others] == ["403 ", "403 "]


@pytest.mark.parametrize(
    ("decision", "told"),
    [({"type": "allow"}, b"GET / HTTP/1.1\n"), ({"type": "deny", "reason": "not_today"}, b'"not_today"')],
)
def test_a_client_is_asked_about_what_is_in_review_although_it_allows_it_itself(
    tmp_path: Path, web: Web, decision: Json, told: bytes
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(f'review = ["http://127.0.0.1:{web.port}"]\n')
    urls = (f"http://127.0.0.1:{web.port}/", "http://127.0.0.1:1/")
    launch = {"proxy": proxy_settings("127.0.0.1"), "policyDecisionTimeoutMs": 30_000}
    with ServerProcess(options=("--network-rules", str(rules))) as server, server.connect() as peer:
        peer.open_session()
        start(peer, "p", ["python3", "-c", FETCH, *urls], env=PATH, networkProxy=launch)
        asked = peer.take({"method": "network/policyRequest"})
        assert asked["params"]["request"] == {"protocol": "http", "host": "127.0.0.1", "port": web.port}
        peer.send({"id": asked["id"], "result": {"decision": decision}})
        found = outcome(peer, "p")
        assert not any(message.get("method") == "network/policyRequest" for message in peer.kept)
    reviewed, other = found.stdout.splitlines(keepends=True)
    assert told in reviewed
    assert b"is in no list of the network rules of this machine" in other


def test_the_rules_of_a_label_are_for_tokens_that_were_issued_with_it(tmp_path: Path, web: Web) -> None:
    """A holder can give a token further labels, and gains nothing by that."""
    folder = token_stores({b"HOME": os.fsencode(tmp_path)})[0]
    rules = tmp_path / "rules.toml"
    here = f"http://127.0.0.1:{web.port}"
    rules.write_text(
        f'allow = ["http://localhost:{web.port}"]\n[label.ci]\nallow = ["{here}"]\ndeny = ["localhost"]'
    )
    ci, other, none = (store.issue(folder, caveats(label=label), 0) for label in ("ci", "other", None))
    added = [narrowed(token, caveats(label="ci")) for token in (other, none)]
    relabelled = narrowed(ci, caveats(label="other"))
    env = {**base_environment(), **own_cache(), "HOME": str(tmp_path)}
    options = ("--network-rules", str(rules), "--ws-auth", "execserver-token")

    def reached(server: ServerProcess, token: Token) -> list[bool]:
        with WsPeer.connect(server.url, headers=[f"Authorization: Bearer {token.text}"]) as peer:
            peer.open_session()
            return [
                line.startswith("GET") for line in fetched(peer, None, here, f"http://localhost:{web.port}")
            ]

    with ServerProcess(options=options, env=env) as server:
        found = [reached(server, token) for token in (ci, relabelled, other, none, *added)]
    assert found == [[True, False]] * 2 + [[False, True]] * 4


def test_a_command_without_the_network_stays_without(peer: Peer, web: Web) -> None:
    sandbox = managed(special("root", "read"))
    found = run(
        *(peer, "p", ["sh", "-c", "echo $HTTP_PROXY; python3 -c 'import socket; socket.socket()'"]),
        env=PATH,
        sandbox=context(sandbox, Path("/tmp")),
    )
    assert found.stdout == b"\n"
    assert b"Operation not permitted" in found.stderr


def test_the_first_contracts_commands_are_refused(peer: Peer) -> None:
    params = {"processId": "p", "argv": ["true"], "cwd": "file:///", "env": {}, "tty": False}
    with pytest.raises(RemoteError, match="cannot be kept to them"):
        peer.call("command/exec", params)


@pytest.mark.parametrize(("text", "told"), [('allow = ["a:x"]', ":1: no port"), (None, "No such file")])
def test_with_a_bad_file_nothing_starts(tmp_path: Path, text: str | None, told: str) -> None:
    rules = tmp_path / "rules.toml"
    if text is not None:
        rules.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "execserver", "--listen", "ws://127.0.0.1:0", "--network-rules", str(rules)],
        env=base_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr
    assert "What to do: " in done.stderr
