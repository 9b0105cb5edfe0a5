"""`deploy/relay-cluster`: what a team copies is what programs take, and gives nobody more than needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gevent
import pytest
import yaml

from execserver.relay.engine.address import address_of, credentials_in
from execserver.relay.engine.line import Dialer, Line
from execserver.relay.engine.resp import Command, Failure
from execserver.relay.errors import EngineSilent
from execserver.verbs import relay
from tests.relay.cluster.conftest import Scene
from tests.relay.cluster.nginx import configuration_in
from tests.support.certificates import make_authority
from tests.support.relay_process import program
from tests.test_operations_page import PROBE, verify
from tools.cluster.balancer import CONFIGURATION
from tools.cluster.cluster import NAMES
from tools.cluster.ends import Executor, Node
from tools.cluster.redis_server import RedisServer, Replicated
from tools.cluster.service import program as program_of
from tools.cluster.service import wait_for
from tools.cluster.streams import connect
from tools.problems import Problem

FOLDER = CONFIGURATION.parent


def found(name: str) -> str:
    """Return the path of a program, or skip."""
    try:
        return program_of(name)
    except Problem as missing:
        pytest.skip(f"{missing}; {missing.cure}")


def complaints(*words: str, **variables: str) -> str:
    """Return what a program says when it checks its configuration; nothing when all is well."""
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=50, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder in which `prepare.sh` has run."""
    subprocess.run([FOLDER / "prepare.sh", tmp_path], check=True, timeout=50)
    return tmp_path


def test_haproxy_takes_its_configuration_with_tls_and_without(tmp_path: Path) -> None:
    check = (found("haproxy"), "-c", "-f", str(CONFIGURATION))
    certificate = tmp_path / "relay.pem"
    certificate.write_bytes(make_authority().issue("relay.example.org"))
    maximum = {"RELAY_MAXCONN": "1000"}
    assert complaints(*check, **maximum) == ""
    assert complaints(*check, RELAY_CERT=str(certificate), **maximum) == ""
    assert "no-such-file" in complaints(*check, RELAY_CERT=str(tmp_path / "no-such-file"), **maximum)


def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    both = make_authority().issue("relay.example.org")
    (tmp_path / "fullchain.pem").write_bytes(both)
    (tmp_path / "privkey.pem").write_bytes(both)
    (tmp_path / "nginx.conf").write_text(configuration_in(tmp_path))
    where = f"pid {tmp_path}/pid; error_log {tmp_path}/log;"
    assert complaints(found("nginx"), "-t", "-q", "-c", str(tmp_path / "nginx.conf"), "-g", where) == ""


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    (tmp_path / "probe.service").write_text(PROBE)
    if trouble := verify(tmp_path / "probe.service"):
        pytest.skip(f"systemd-analyze does not work here: {trouble}")
    text = (FOLDER / "execserver-relay@.service").read_text()
    assert "/usr/local/bin/execserver" in text
    unit = tmp_path / "execserver-relay@n1.service"
    unit.write_text(
        text.replace("/usr/local/bin/execserver", "/bin/true").replace("execserver-relay\n", "root\n")
    )
    assert verify(unit) == ""


@pytest.mark.parametrize("words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_the_rules_fire_where_they_should(words: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run(
        [promtool, *words], cwd=FOLDER, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def compose() -> dict[str, Any]:
    """Return the services of the compose file."""
    loaded = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return dict(loaded["services"])


def test_the_compose_file_starts_relays_that_the_balancer_knows() -> None:
    services = compose()
    balanced = re.findall(r"^    server (\S+) ", CONFIGURATION.read_text(), re.MULTILINE)
    assert balanced == [services[name]["hostname"] for name in NAMES]
    for name in NAMES:
        address = services[name]["networks"]["front"]["ipv4_address"]
        assert services["haproxy"]["environment"][f"RELAY_{name.upper()}"] == f"{address}:8080"
    first, verb, *words = services["n1"]["command"]
    assert (first, verb) == ("execserver", "relay")
    engine = next(word for word in words if word.startswith("--engine=")).removeprefix("--engine=")
    assert [host for host, _ in address_of(engine).hosts] == ["sentinel1", "sentinel2", "sentinel3"]
    assert {word.partition("=")[0] for word in words} <= set(re.findall(r"--[a-z-]+", relay.HELP))


def test_secrets_are_random_private_and_made_once(
    prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    for folder in (prepared, other):
        subprocess.run([FOLDER / "prepare.sh", folder], check=True, timeout=50)
    before = credentials_in(str(prepared / "secrets" / "engine-auth"))
    assert before.user == "relay"
    assert len(before.password) == 64
    assert before.password != credentials_in(str(other / "secrets" / "engine-auth")).password
    assert all(file.stat().st_mode & 0o077 == 0 for file in prepared.rglob("*"))
    assert before.password not in (prepared / "secrets" / "users.acl").read_text()
    subprocess.run([FOLDER / "prepare.sh", prepared], check=True, timeout=50)
    assert credentials_in(str(prepared / "secrets" / "engine-auth")) == before


def read_options(file: Path) -> dict[str, str]:
    """Return the lines of a Redis configuration."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(" ", 1) for line in lines)


def options_in(prepared: Path) -> dict[str, str]:
    """Return what redis.conf and the secrets say, for a Redis of this machine."""
    options = read_options(FOLDER / "redis.conf")
    for name in ("port", "dir", "include"):
        del options[name]
    assert options["aclfile"] == "/run/secrets/users.acl"
    return (
        options
        | read_options(prepared / "secrets" / "redis.conf")
        | {"aclfile": str(prepared / "secrets" / "users.acl")}
    )


def line_to(url: str, prepared: Path, user: str) -> Line:
    """Sign in with one of the secrets."""
    environ = {"SSL_CERT_FILE": str(prepared / "authority.pem")}
    return Dialer(address_of(url), credentials_in(str(prepared / "secrets" / f"{user}-auth")), environ).dial()


class Tls(RedisServer):
    """A Redis that is reached over TLS only."""

    def __init__(self, folder: Path, prepared: Path) -> None:
        authority = make_authority()
        (prepared / "authority.pem").write_bytes(authority.pem)
        (prepared / "engine.pem").write_bytes(authority.issue("127.0.0.1"))
        pem = str(prepared / "engine.pem")
        tls = {"tls-cert-file": pem, "tls-key-file": pem, "tls-ca-cert-file": str(prepared / "authority.pem")}
        # One alone: there are no replicas that could take its place.
        options = options_in(prepared) | tls | {"tls-auth-clients": "no", "min-replicas-to-write": "0"}
        super().__init__(folder, options=options, pause=gevent.sleep)
        self.service.command += ["--port", "0", "--tls-port", str(self.port)]

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        return self.service.says("Ready to accept connections")


@pytest.fixture
def engine(prepared: Path, scene: Scene) -> Tls:
    """A Redis with the rights of `users.acl`, behind TLS."""
    found("redis-server")
    server = Tls(scene.folder, prepared)
    scene.callback(server.service.kill)
    server.start()
    return server


def test_a_relay_does_all_it_does_with_the_rights_that_it_has(
    engine: Tls, prepared: Path, scene: Scene
) -> None:
    trust = {"SSL_CERT_FILE": str(prepared / "authority.pem")}

    def words(user: str) -> list[str]:
        return ["--engine", engine.url, "--engine-auth", str(prepared / "secrets" / f"{user}-auth")]

    def run(user: str, *rest: str) -> str:
        command = [*program(), "relay", *rest, *words(user)]
        done = subprocess.run(
            command, env={**os.environ, **trust}, capture_output=True, text=True, timeout=50, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    token = run("tokens", "token", "create", "--environment-id", "box").strip()
    node = Node(
        "n1", program(), [*words("engine"), "--drain", "0"], scene.folder, variables=trust, pause=gevent.sleep
    )
    scene.callback(node.service.kill)
    node.start()
    url = f"http://{node.place}"
    executor = Executor(program(), url, "box", token, scene.folder, pause=gevent.sleep)
    scene.callback(executor.service.kill)
    executor.service.start()
    executor.service.wait_for(executor.is_ready, "connected")
    with connect(url, "box", token) as client:
        assert client.start(["echo", "in"]).communicate().stdout == b"in\n"
    assert "n1" in run("engine", "status")
    assert "box" in run("tokens", "token", "list")
    run("tokens", "token", "revoke", token.split("-")[1])
    executor.service.wait()
    assert executor.service.says("401 Unauthorized")
    assert node.service.stop() == 0
    assert not node.service.says("NOPERM")


def test_nobody_has_further_rights(engine: Tls, prepared: Path) -> None:
    refused: dict[str, list[Command]] = {
        "engine": [
            ("HSET", "t:0123456789ab", "role", "both"),  # a relay makes no tokens
            ("DEL", "t:0123456789ab"),
            ("GET", "somebody-else"),
            ("PUBLISH", "somebody-else", "x"),
            ("KEYS", "*"),
            ("CONFIG", "GET", "*"),
            ("FLUSHALL",),
            ("ACL", "LIST"),
            ("EVAL", "return redis.call('KEYS', '*')", 0),
        ],
        "tokens": [
            ("HMGET", "r:{box}", "key"),
            ("HSET", "r:{box}", "key", "mine"),  # who makes tokens swaps no keys
            ("PUBLISH", "node:n1", "x"),
            ("FLUSHALL",),
        ],
    }
    for user, commands in refused.items():
        line = line_to(engine.url, prepared, user)
        replies = [line.ask(command)[0] for command in commands]
        line.close()
        codes = [reply.code if isinstance(reply, Failure) else reply for reply in replies]
        assert codes == ["NOPERM"] * len(commands)


@pytest.mark.long
def test_a_failover_needs_no_further_rights(prepared: Path, scene: Scene) -> None:
    found("redis-server")
    lines = (prepared / "secrets" / "sentinel.conf").read_text()
    engine = Replicated(scene.folder, gevent.sleep, options_in(prepared), lines)
    for service in engine.services:
        scene.callback(service.kill)
    engine.start()
    line_to(engine.url, prepared, "engine").close()
    former = engine.current()
    former.service.kill()
    wait_for(lambda: engine.current() is not former, "there is another primary", pause=gevent.sleep)

    def is_usable() -> bool:
        try:
            line = line_to(engine.url, prepared, "engine")
        except EngineSilent:
            return False
        (reply,) = line.ask(("SET", "n:probe", "x", "PX", 1))
        line.close()
        return reply == b"OK"

    wait_for(is_usable, "relays write there", pause=gevent.sleep)
