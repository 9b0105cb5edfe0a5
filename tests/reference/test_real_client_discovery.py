"""What the newest client finds on the executor's machine: through ours as through its own server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from execserver.version import CONTRACT_VERSION
from tests.reference.app_server import AppServer
from tests.reference.codex_cli import Client
from tests.reference.mcp_fixture import STDIO_SERVER, McpHttpServer
from tests.reference.model_server import Turn, say
from tests.reference.test_real_client_ways import mcp_call
from tests.support.folders import plain_place
from tests.support.server_process import OURS, Flavour, ServerProcess, base_environment

pytestmark = pytest.mark.timeout(300)

TOKEN = "Bearer of-the-executor"


@pytest.fixture(params=["ours", "newest"])
def found_by(request: pytest.FixtureRequest) -> Flavour:
    """The server: ours, or that of the client's own version."""
    return OURS if request.param == "ours" else request.getfixturevalue("newest_reference")


@pytest.fixture
def home() -> Iterator[Path]:
    """The home of the executor's user."""
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        (Path(folder) / ".codex").mkdir()
        yield Path(folder).resolve()


@pytest.fixture
def executor(found_by: Flavour, home: Path) -> Iterator[ServerProcess]:
    """A server with that home."""
    flavour = Flavour(found_by.name, found_by.argv, found_by.exit_on_terminate)
    env = {name: value for name, value in base_environment().items() if name != "TMPDIR"}
    env |= {"HOME": str(home), "CODEX_HOME": str(home / ".codex"), "EXECUTOR_TOKEN": TOKEN.split()[1]}
    with ServerProcess(flavour, env=env, cwd=home) as running:
        yield running


def skill(folder: Path, name: str) -> None:
    """Write a skill."""
    (folder / name).mkdir(parents=True)
    text = f"---\nname: {name}\ndescription: does-{name}\n---\nBody.\n"
    (folder / name / "SKILL.md").write_text(text)


def client_with(script: list[Turn]) -> Client:
    """Return a client of the newest version."""
    return Client(CONTRACT_VERSION, script)


def start_thread(app: AppServer, cwd: Path, **more: object) -> str:
    """Start a thread on the executor and return its id."""
    params: dict[str, Any] = {
        "environments": [{"environmentId": "remote", "cwd": str(cwd)}],
        "sandbox": "danger-full-access",
        "approvalPolicy": "never",
        **more,
    }
    return str(app.call("thread/start", params)["thread"]["id"])


def take_turn(app: AppServer, thread: str) -> None:
    """Take a turn to its end."""
    app.call("turn/start", {"threadId": thread, "input": [{"type": "text", "text": "go"}]})
    app.wait_for("turn/completed")


def test_mcp_servers_over_http_of_the_executors_configuration_are_used(
    executor: ServerProcess, home: Path
) -> None:
    mcp = McpHttpServer()
    (home / ".codex/config.toml").write_text(
        f'[mcp_servers.probe]\nurl = "{mcp.url}"\nbearer_token_env_var = "EXECUTOR_TOKEN"\n'
    )
    try:
        with client_with([mcp_call("greet", {}), [say("done")]]) as client:
            client.run(executor.url)
            assert "hello over http" in str(client.model.outputs()["call-1"])
    finally:
        mcp.stop()
    assert {headers.get("authorization") for _, headers in mcp.seen} == {TOKEN}


def test_skills_of_the_executors_user_are_found_by_their_feature(
    executor: ServerProcess, found_by: Flavour, home: Path
) -> None:
    if found_by.is_reference:
        pytest.skip("its own search comes back empty now and then")
    skill(home / ".agents/skills", "of-the-user")
    skill(home / ".codex/skills", "of-codex")
    with client_with([[say("done")]]) as client:
        client.extra_config = "[features]\nexecutor_capability_discovery_v2 = true\n"
        skill(client.workspace / ".agents/skills", "of-the-project")
        (client.workspace / "AGENTS.md").write_text("an-agents-token\n")
        app = AppServer(client)
        try:
            app.call("environment/add", {"environmentId": "remote", "execServerUrl": executor.url})
            wanted = {"does-of-the-user", "does-of-codex", "does-of-the-project", "an-agents-token"}
            take_turn(app, start_thread(app, client.workspace))
        finally:
            app.close()
        asked = json.dumps(client.model.requests[-1])
        assert {token for token in wanted if token not in asked} == set()


def test_a_selected_plugin_brings_its_skills_and_servers(executor: ServerProcess, home: Path) -> None:
    plugin = home / "plug"
    (plugin / ".codex-plugin").mkdir(parents=True)
    (plugin / ".codex-plugin/plugin.json").write_text('{"name":"plug"}')
    server = {"command": "python3", "args": ["srv.py"], "cwd": "."}
    (plugin / ".mcp.json").write_text(json.dumps({"mcpServers": {"probe": server}}))
    (plugin / "srv.py").write_text(STDIO_SERVER)
    skill(plugin / "skills", "of-the-plugin")
    with client_with([mcp_call("whereami", {"n": 3}), [say("done")]]) as client:
        client.extra_config = "[features]\nexecutor_capability_discovery = true\n"
        app = AppServer(client)
        try:
            app.call("environment/add", {"environmentId": "remote", "execServerUrl": executor.url})
            root = {"type": "environment", "environmentId": "remote", "path": str(plugin)}
            roots = [{"id": "plug", "location": root}]
            take_turn(app, start_thread(app, home, selectedCapabilityRoots=roots))
        finally:
            app.close()
        asked = json.dumps(client.model.requests[0])
        assert "does-of-the-plugin" in asked
        assert "zzz" in str(client.model.outputs()["call-1"])
