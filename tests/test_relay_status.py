"""`execserver relay token --engine` and `relay status`: as an operator types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.relay.cluster.nodes import Nodes
from tests.support.engine_process import EngineProcess, engine_program
from tests.support.relay_process import Peer, RelayProcess

PASSWORD = "secret-1"
DONE = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    engine_program()
    with EngineProcess() as engine, Nodes(engine) as made:
        yield made


@pytest.fixture(scope="module")
def n1(nodes: Nodes) -> RelayProcess:
    return nodes.add("n1", "--node-url", "http://n1.test")


def relay(*words: str) -> DONE:
    return subprocess.run(
        [sys.executable, "-m", "execserver", "relay", *words],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_tokens_are_made_listed_and_revoked_in_the_engine(nodes: Nodes, n1: RelayProcess) -> None:
    made = relay(
        "token", "create", "--environment-id", "box-7", "--role", "executor", "--engine", nodes.engine.url
    )
    text = made.stdout.strip()
    token_id = text.split("-")[1]
    assert f"in {nodes.engine.url}; it is shown this once" in made.stderr
    listed = relay("token", "list", "--engine", nodes.engine.url)
    assert any(line.split()[::3] == [token_id, "box-7"] for line in listed.stdout.splitlines())
    assert n1.call("box-7", "connect", {}, text)[0] == 403  # known, and not for this role
    revoked = relay("token", "revoke", token_id, "--engine", nodes.engine.url)
    assert (revoked.returncode, revoked.stderr) == (0, f"token {token_id} is revoked\n")
    assert n1.call("box-7", "connect", {}, text)[0] == 401
    again = relay("token", "revoke", token_id, "--engine", nodes.engine.url)
    assert again.returncode == 1
    assert f"there is no token {token_id} in {nodes.engine.url}" in again.stderr


def test_a_revocation_that_no_replica_has_confirmed_is_told(nodes: Nodes) -> None:
    text = nodes.token("box-8")
    with EngineProcess("--replicaof", f"127.0.0.1 {nodes.engine.port}", "--repl-timeout", "60") as replica:
        nodes.engine.wait_for_replica()
        replica.pause()
        done = relay("token", "revoke", text.split("-")[1], "--engine", nodes.engine.url)
        assert done.returncode == 1
        assert "is revoked, but no replica has confirmed it" in done.stderr


def test_the_status_names_nodes_and_where_an_environment_is(nodes: Nodes, n1: RelayProcess) -> None:
    token = nodes.token("box-9")
    words = ("status", "--engine", nodes.engine.url, "--environment-id", "box-9")
    with Peer(n1.register(token, 0, "box-9")["url"]):
        nodes.wait_for_presence("n1", "box-9")
        shown = json.loads(relay(*words, "--json").stdout)
        assert shown["engine"]["version"].startswith(("Redis ", "Valkey "))
        (node,) = shown["nodes"]
        assert (node["name"], node["state"], node["url"]) == ("n1", "up", "ws://n1.test")
        assert node["beat_age_s"] < 30
        assert shown["environment"]["node"] == "n1"
        table = relay(*words).stdout
        assert "connected to node n1" in table
        assert "NODE" in table
    nodes.engine.ask("ZADD", "nodes", str(round(time.time()) - 100), "n0")
    done = relay("status", "--engine", nodes.engine.url)
    nodes.engine.ask("ZREM", "nodes", "n0")
    assert done.returncode == 1  # a node that ended without a word
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("n0")] == ["gone"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("status",), "the following required arguments were not provided"),
        (("status", "--engine", "redis://a", "--environment-id", "a/b"), "invalid value 'a/b'"),
        (("--engine", "redis://:secret-1@a"), "--engine-auth"),
        (("--engine", "redis://a", "--state", "f"), "give one of the two"),
        (("--engine", "redis://a", "--node", "a b"), "invalid --node"),
        (("--engine", "redis://a", "--engine-grace", "soon"), "invalid --engine-grace"),
        (("--node", "n1"), "--node needs --engine"),
        (("token", "list", "--engine-auth", "f"), "--engine-auth needs --engine"),
        (("token", "list", "--engine", "redis://a", "--token-file", "f"), "give one of the two"),
        (("token", "list", "--engine", "redis://127.0.0.1:1"), "127.0.0.1:1: Connection refused"),
    ],
)
def test_mistakes_are_told(words: tuple[str, ...], told: str) -> None:
    done = relay(*words)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert PASSWORD not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_password_comes_from_a_file(tmp_path: Path) -> None:
    engine_program()
    auth = tmp_path / "auth"
    auth.write_text(f":{PASSWORD}\n")
    auth.chmod(0o600)
    with EngineProcess("--requirepass", PASSWORD) as engine:
        words = ("token", "list", "--engine", engine.url)
        assert relay(*words, "--engine-auth", str(auth)).returncode == 0
        refused = relay(*words)
        assert refused.returncode == 1
        assert "--engine-auth" in refused.stderr


def test_without_an_engine_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys; import execserver.relay.app, execserver.verbs.relay;"
        "parts = ('execserver.relay.engine', 'execserver.relay.cluster');"
        "print([name for name in sys.modules if name.startswith(parts)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"
