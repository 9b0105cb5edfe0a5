"""A program that drives the shell tool with the official MCP package, and prints what it saw as JSON.

Its arguments are the command of the server.  It is a program of its own because the package brings an event
loop, which does not belong into a test run.  Of the package only the parts for a client over stdio are
loaded, so that what the others need does not have to be installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

Seen = dict[str, Any]
CANCELLED_S = "77.72318"


def is_running(command_line: str) -> bool:
    """Tell whether a process with these arguments is there."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if file.read_bytes() == command_line.encode():
                return True
        except OSError:
            continue
    return False


def without_contents(name: str) -> None:
    """Make a package importable by parts, without what its own file imports."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    package = types.ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations or [])
    sys.modules[name] = package


async def play(command: list[str]) -> Seen:
    """Have a conversation; return what was seen."""
    import anyio
    import mcp_types
    from mcp.client.session import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    seen: Seen = {"asked": []}

    async def answer(_context: Any, params: Any) -> Any:
        seen["asked"].append(params.message)
        action = "accept" if "yes" in params.message else "decline"
        return mcp_types.ElicitResult(action=action, content={} if action == "accept" else None)

    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with (
        stdio_client(server) as (reading, writing),
        ClientSession(reading, writing, elicitation_callback=answer) as session,
    ):
        greeting = await session.initialize()
        seen["version"] = greeting.protocol_version
        seen["instructions"] = greeting.instructions
        seen["tools"] = [tool.name for tool in (await session.list_tools()).tools]
        seen["resources"] = list((await session.list_resources()).resources)
        seen["prompts"] = list((await session.list_prompts()).prompts)
        await session.send_ping()

        async def call(name: str, shell_command: str, **more: object) -> None:
            arguments = {"command": shell_command, "workdir": "/", "login": False, **more}
            try:
                result = await session.call_tool("shell", arguments)
                seen[name] = {**json.loads(result.content[0].text), "is_error": result.is_error}
            except Exception as error:
                seen[name] = str(error)

        await call("plain", "echo hi; exit 3")
        await call("denied", "echo x > /etc/made-by-a-test")
        await call("asked about", "/bin/true yes && echo ran; /bin/true no || echo refused")
        await call("timed out", "echo partial; sleep 30", timeout_ms=200)
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(call, f"parallel {number}", f"echo {number}")
        with anyio.move_on_after(0.3):
            await call("cancelled", f"sleep {CANCELLED_S}")
        await call("after", "echo still here")
        with anyio.fail_after(20):
            while is_running(f"sleep\0{CANCELLED_S}\0"):
                await anyio.sleep(0.01)
        seen["cancelled has ended"] = True
    return seen


def main() -> int:
    """Play, and print what was seen."""
    without_contents("mcp")
    without_contents("mcp.client")
    import anyio

    print(json.dumps(anyio.run(play, sys.argv[1:])))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
