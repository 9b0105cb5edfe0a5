"""The real client 0.169.0 shows the token of its environments.toml; with a wrong one nothing is done.

The provider of the OIDC tokens is a double on the loopback (`tests/support/oidc.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.access.tokens import store
from execserver.access.tokens.caveats import caveats
from execserver.access.tokens.chain import narrowed
from tests.reference.codex_cli import Client
from tests.reference.install import ReferenceMissing
from tests.reference.model_server import say
from tests.reference.scenario import MARK, outputs, shell
from tests.support.certificates import make_authority
from tests.support.oidc import Provider, rsa_key
from tests.support.server_process import OURS, ServerProcess, base_environment

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-test"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of ours that asks for the token."""
    (tmp_path / "token").write_text(TOKEN)
    options = ("--ws-auth", "capability-token", "--ws-token-file", str(tmp_path / "token"))
    env = base_environment() | {"EXECUTOR_MARK": MARK, "EXECSERVER_LOG": "info"}
    with ServerProcess(OURS, options=options, env=env, cwd=ROOT) as running:
        yield running


@pytest.fixture
def secure_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """The same with TLS; its authority is in `ca.pem`."""
    authority = make_authority()
    both, token = str(tmp_path / "both.pem"), str(tmp_path / "token")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    Path(both).write_bytes(authority.issue("127.0.0.1"))
    Path(token).write_text(TOKEN)
    options = ["--tls-cert", both, "--tls-key", both]
    options += ["--ws-auth", "capability-token", "--ws-token-file", token]
    env = base_environment() | {"EXECUTOR_MARK": MARK}
    with ServerProcess(OURS, listen="wss://127.0.0.1:0", options=options, env=env, cwd=ROOT) as running:
        yield running


@pytest.fixture
def client() -> Iterator[Client]:
    """A client that runs one command and is done."""
    try:
        made = Client("0.169.0", [[shell("echo $EXECUTOR_MARK")], [say("done")]])
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    with made:
        yield made


def name_server(client: Client, url: str, token: str) -> None:
    """Make this server the client's only environment."""
    (client.codex_home / "environments.toml").write_text(
        'default = "box"\ninclude_local = false\n\n'
        f'[[environments]]\nid = "box"\nurl = "{url}"\nauth_bearer_token = "{token}"\n'
    )


def test_the_right_token_opens_a_session(client: Client, server: ServerProcess) -> None:
    name_server(client, server.url, TOKEN)
    client.run(None)
    assert outputs(client)["call-1"].text.strip() == MARK
    assert "way=token name='capability-token'" in server.errors()
    assert TOKEN not in server.errors()


def test_the_token_goes_over_tls(client: Client, secure_server: ServerProcess, tmp_path: Path) -> None:
    client.extra_env = {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}
    name_server(client, secure_server.url, TOKEN)
    client.run(None)
    assert outputs(client)["call-1"].text.strip() == MARK


def test_a_wrong_token_opens_none(client: Client, server: ServerProcess) -> None:
    name_server(client, server.url, "another")
    client.run(None)
    assert MARK not in str(client.model.outputs())
    assert "not admitted: status=401" in server.errors()
    assert "session opened" not in server.errors()


class Door:
    """A way to ask who comes: options and variables of a server, a token that it takes, and its holder."""

    def __init__(self, options: list[str], token: str, holder: str, env: dict[str, str]) -> None:
        self.options = options
        self.token = token
        self.holder = holder
        self.env = env


@pytest.fixture(params=["execserver-token", "oidc"])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Door]:
    """Each of the two doors that the reference does not have."""
    if request.param == "oidc":
        key = rsa_key()
        with Provider(key) as provider:
            options = ["--ws-auth", "oidc", "--oidc-issuer", provider.issuer, "--oidc-audience", "box"]
            yield Door(options, key.token(provider.claims(time.time())), "way=oidc name='ada'", {})
        return
    (tmp_path / "tokens").mkdir(mode=0o700)
    token = store.issue(os.fsencode(tmp_path / "tokens"), caveats(label="ci"), time.time())
    variables = {"EXECSERVER_TOKEN_STORE": str(tmp_path / "tokens")}
    weaker = narrowed(token, caveats(label="job")).text
    yield Door(["--ws-auth", "execserver-token"], weaker, f"way=token name='{token.id} ci/job'", variables)


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_the_token_of_each_door_opens_it(client: Client, door: Door, scheme: str, tmp_path: Path) -> None:
    options = list(door.options)
    if scheme == "wss":
        authority, both = make_authority(), str(tmp_path / "both.pem")
        (tmp_path / "ca.pem").write_bytes(authority.pem)
        Path(both).write_bytes(authority.issue("127.0.0.1"))
        options += ["--tls-cert", both, "--tls-key", both]
        client.extra_env = {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}
    env = base_environment() | {"EXECUTOR_MARK": MARK, "EXECSERVER_LOG": "info", **door.env}
    with ServerProcess(OURS, listen=f"{scheme}://127.0.0.1:0", options=options, env=env, cwd=ROOT) as server:
        name_server(client, server.url, door.token)
        client.run(None)
        assert outputs(client)["call-1"].text.strip() == MARK
        assert door.holder in server.errors()
        assert door.token not in server.errors()


def test_a_changed_token_opens_no_door(client: Client, door: Door) -> None:
    env = base_environment() | {"EXECUTOR_MARK": MARK, "EXECSERVER_LOG": "info", **door.env}
    with ServerProcess(OURS, options=door.options, env=env, cwd=ROOT) as server:
        name_server(client, server.url, door.token[:-4] + "AAAA")
        client.run(None)
        assert MARK not in str(client.model.outputs())
        assert "not admitted: status=401" in server.errors()
        assert "session opened" not in server.errors()
