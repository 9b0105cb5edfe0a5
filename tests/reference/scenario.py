"""What the scenarios with the real client are made of: calls of its shell tool, and the reports they give."""

from __future__ import annotations

from collections.abc import Callable

from tests.reference.codex_cli import Client
from tests.reference.model_server import Item, ModelServer, Turn, call, say
from tests.reference.tool_output import ToolOutput, read
from tests.support.server_process import ServerProcess

MARK = "made-by-the-executor"
"""The value of EXECUTOR_MARK in the server's environment, and nowhere else."""

MakeClient = Callable[[list[Turn]], Client]


def shell(
    cmd: str, call_id: str = "call-1", *, wait_ms: int = 20_000, tty: bool = False, **more: object
) -> Item:
    """Run a command with the client's shell tool and wait for its end."""
    arguments = {"cmd": cmd, "yield_time_ms": wait_ms, "tty": tty, "login": False, **more}
    return call("exec_command", arguments, call_id)


def type_in(text: str, call_id: str, *, after: str = "call-1", wait_ms: int = 5_000) -> Turn:
    """Write to the command that `after` left running; with no text, only look at its output."""

    def turn(model: ModelServer) -> list[Item]:
        session = read(model.outputs()[after]).session
        arguments = {"session_id": session, "chars": text, "yield_time_ms": wait_ms}
        return [call("write_stdin", arguments, call_id)]

    return turn


def outputs(client: Client) -> dict[str, ToolOutput]:
    """Return the reports of the shell tool by call id."""
    return {call_id: read(report) for call_id, report in client.model.outputs().items()}


def run_one(make_client: MakeClient, server: ServerProcess, item: Item) -> ToolOutput:
    """Run a single tool call to its end."""
    client = make_client([[item], [say("done")]])
    client.run(server.url)
    return outputs(client)["call-1"]
