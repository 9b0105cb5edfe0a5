"""The released clients with our shell tool among their MCP servers: it runs in the session's sandbox."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mcp.replaying import SCRIPT
from tests.reference.codex_cli import Client
from tests.reference.install import VERSIONS, ReferenceMissing
from tests.reference.model_server import Item, ModelServer, call, say
from tests.reference.scenario import shell

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=VERSIONS)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    try:
        made = Client(
            request.param,
            # The first request may come before the server is up.
            [[shell("sleep 2")], lambda model: use_tool(model, str(made.workspace)), [say("done")]],
        )
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    with made:
        arguments = json.dumps(["-I", str(SCRIPT), "mcp"])
        made.extra_config = (
            f"[mcp_servers.box]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n"
            'startup_timeout_sec = 60\ndefault_tools_approval_mode = "approve"\n'
        )
        yield made


def use_tool(model: ModelServer, folder: str) -> list[Item]:
    """Call our tool in the form the client offers it by now."""
    command = "touch /etc/made-by-a-test || echo no; touch here && echo yes; true"
    arguments: dict[str, Any] = {"command": command, "workdir": folder, "login": False}
    for tool in model.requests[-1]["tools"]:
        for inner in [tool, *tool.get("tools", [])]:
            if inner.get("name") in ("shell", "mcp__box__shell"):
                return [call(inner["name"], arguments, "call-2", tool["name"] if inner is not tool else None)]
    raise AssertionError(f"no tool among {model.requests[-1]['tools']}")


@pytest.mark.parametrize(("sandbox", "writes"), [("read-only", False), ("workspace-write", True)])
def test_the_sandbox_of_the_session_is_the_tools(client: Client, sandbox: str, writes: bool) -> None:
    client.run(None, sandbox=sandbox)
    report = str(client.model.outputs()["call-2"])
    assert "no\\" in report
    assert ("yes\\" in report) == writes
    assert (client.workspace / "here").exists() == writes
