"""The real client's other ways: MCP servers, skills, dropped connections, stdio, app-server."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from tests.reference.app_server import AppServer
from tests.reference.codex_cli import Client
from tests.reference.mcp_fixture import STDIO_SERVER, McpHttpServer
from tests.reference.model_server import ModelServer, Turn, call, say
from tests.reference.scenario import MARK, MakeClient, outputs, shell
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_process import Flavour, ServerProcess, base_environment

pytestmark = pytest.mark.timeout(300)


def mcp_call(name: str, arguments: dict[str, Any]) -> Turn:
    """Call the tool of this name of the MCP server `probe`, in the form the client offered it."""

    def turn(model: ModelServer) -> list[dict[str, Any]]:
        for tool in model.requests[0]["tools"]:
            for inner in [tool, *tool.get("tools", [])]:
                if str(inner.get("name", "")).endswith(name):
                    space = tool["name"] if inner is not tool else None
                    return [call(inner["name"], arguments, namespace=space)]
        raise AssertionError(f"no tool {name} among {model.requests[0]['tools']}")

    return turn


def test_an_mcp_server_on_stdio_runs_on_the_executor(make_client: MakeClient, server: ServerProcess) -> None:
    client = make_client([mcp_call("whereami", {"n": 70_000}), [say("done")]])
    (client.workspace / "srv.py").write_text(STDIO_SERVER)
    client.extra_config = (
        "[mcp_servers.probe]\n"
        f"command = {json.dumps(sys.executable)}\n"
        f"args = [{json.dumps(str(client.workspace / 'srv.py'))}]\n"
        f"cwd = {json.dumps(str(client.workspace))}\n"
        'environment_id = "remote"\n'
        'env_vars = [{ name = "EXECUTOR_MARK", source = "remote" }]\n'
        'env = { OWN = "own-value" }\n'
    )
    client.run(server.url)
    assert f"mark={MARK} own=own-value zzz" in str(client.model.outputs()["call-1"])


def test_an_mcp_server_on_http_is_reached_from_the_executor(
    make_client: MakeClient, server: ServerProcess
) -> None:
    mcp = McpHttpServer()
    try:
        client = make_client([mcp_call("greet", {}), [say("done")]])
        client.extra_config = (
            f'[mcp_servers.probe]\nurl = "{mcp.url}"\nenvironment_id = "remote"\n'
            'http_headers = { "X-Own" = "own-header" }\n'
        )
        client.run(server.url)
    finally:
        mcp.stop()
    assert "hello over http" in str(client.model.outputs()["call-1"])
    methods = [method for method, _ in mcp.seen]
    assert methods[:2] == ["initialize", "notifications/initialized"]
    assert "tools/call" in methods
    assert all(headers.get("x-own") == "own-header" for _, headers in mcp.seen)


def test_skills_are_found_on_the_executor(
    make_client: MakeClient, server: ServerProcess, flavour: Flavour
) -> None:
    client = make_client([[say("done")]])
    folder = client.workspace / ".agents" / "skills" / "probe-skill"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: probe-skill\ndescription: a-skill-token\n---\nBody.\n")
    client.run(server.url)
    # The newer client asks for fs/walk, which the reference server of the target lacks.
    expected = not (flavour.is_reference and client.version != "0.142.0")
    assert ("a-skill-token" in client.model.instructions()) == expected


def test_a_command_survives_dropped_connections(make_client: MakeClient, server: ServerProcess) -> None:
    proxy = CuttingProxy(server.url)
    try:
        loop = "i=0; while [ $i -lt 40 ]; do echo line$i; i=$((i+1)); sleep 0.1; done; exit 5"
        client = make_client([[shell(loop, wait_ms=30_000)], [say("done")]])
        with client.start(proxy.url) as child:
            wait_for_processes(client, proxy)
            for _ in range(3):
                time.sleep(0.7)
                proxy.cut()
            out, err = child.communicate(timeout=120)
        assert child.returncode == 0, (out, err)
    finally:
        proxy.stop()
    lines = "".join(f"line{n}\n" for n in range(40))
    assert (outputs(client)["call-1"].code, outputs(client)["call-1"].text) == (5, lines)
    assert proxy.connections >= 4


def wait_for_processes(client: Client, proxy: CuttingProxy) -> None:
    """Wait until the client has asked its model once, and so is about to run the command."""
    deadline = time.monotonic() + 60
    while not client.model.requests:
        assert time.monotonic() < deadline, "the client did not start its turn"
        time.sleep(0.05)


def test_a_command_survives_an_outage(make_client: MakeClient, server: ServerProcess) -> None:
    proxy = CuttingProxy(server.url)
    try:
        loop = "i=0; while [ $i -lt 30 ]; do echo line$i; i=$((i+1)); sleep 0.1; done"
        client = make_client([[shell(loop, wait_ms=30_000)], [say("done")]])
        with client.start(proxy.url) as child:
            wait_for_processes(client, proxy)
            time.sleep(1.0)
            proxy.refuse(True)
            proxy.cut()
            time.sleep(4.0)
            proxy.refuse(False)
            out, err = child.communicate(timeout=120)
        assert child.returncode == 0, (out, err)
    finally:
        proxy.stop()
    assert outputs(client)["call-1"].text == "".join(f"line{n}\n" for n in range(30))
    assert outputs(client)["call-1"].code == 0


def test_the_client_starts_the_server_itself_over_stdio(make_client: MakeClient, flavour: Flavour) -> None:
    client = make_client([[shell("echo over stdio; exit 2")], [say("done")]])
    program, *args = [*flavour.argv, "--listen", "stdio"]
    env = base_environment() | flavour.env
    (client.codex_home / "environments.toml").write_text(
        'default = "box"\n[[environments]]\nid = "box"\n'
        f"program = {json.dumps(program)}\nargs = {json.dumps(args)}\n"
        f"env = {{ {', '.join(f'{name} = {json.dumps(value)}' for name, value in env.items())} }}\n"
    )
    client.run(None)
    assert (outputs(client)["call-1"].code, outputs(client)["call-1"].text) == (2, "over stdio\n")


def test_the_app_server_adds_our_server_as_an_environment(
    make_client: MakeClient, server: ServerProcess
) -> None:
    client = make_client([[shell("pwd; echo $EXECUTOR_MARK")], [say("done")]])
    folder = client.workspace / "only on executor"
    folder.mkdir()
    (folder / "AGENTS.md").write_text("an-app-server-token\n")
    app = AppServer(client)
    try:
        app.call("environment/add", {"environmentId": "box", "execServerUrl": server.url})
        thread = app.call(
            "thread/start",
            {
                "environments": [{"environmentId": "box", "cwd": str(folder)}],
                "sandbox": "danger-full-access",
                "approvalPolicy": "never",
            },
        )
        text = [{"type": "text", "text": "go"}]
        app.call("turn/start", {"threadId": thread["thread"]["id"], "input": text})
        app.wait_for("turn/completed")
    finally:
        app.close()
    assert outputs(client)["call-1"].text == f"{folder}\n{MARK}\n"
    assert "an-app-server-token" in client.model.instructions()
