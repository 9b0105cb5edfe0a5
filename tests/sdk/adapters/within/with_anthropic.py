"""The tools of Anthropic's SDK on a box, called by its runner with a scripted model behind a local server."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from anthropic.lib.tools import ToolError

from execserver_adapters.anthropic import ExecserverToolset

BOX = os.environ["EXECSERVER_TEST_BOX"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that no sandbox here may write to; those of `tmp_path` are temporary folders of the box."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@contextmanager
def scripted(*calls: tuple[str, dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve the messages API on this machine: a model that calls tools one after the other."""
    waiting, asked = [*calls], []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            block: dict[str, Any] = {"type": "text", "text": "Done."}
            if waiting:
                name, given = waiting.pop(0)
                block = {"type": "tool_use", "id": f"t{len(waiting)}", "name": name, "input": given}
            answer = {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "model": "scripted",
                "content": [block],
                "stop_reason": "tool_use" if block["type"] == "tool_use" else "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *rest: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def text_of(content: Any) -> str:
    """Return the text of a tool's result, which is one or a list of blocks."""
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


async def called(toolset: ExecserverToolset, name: str, **given: Any) -> Any:
    """Call one tool as a runner does."""
    (tool,) = (tool for tool in toolset.tools if tool.name == name)
    return await tool.call(given)


def test_the_runner_of_messages_plays_a_whole_course(place: Path) -> None:
    calls = (
        ("write", {"file_path": "src/answer.py", "content": "print(6 * 8)\n"}),
        ("edit", {"file_path": "src/answer.py", "old_string": "8", "new_string": "7"}),
        ("read", {"file_path": "src/answer.py", "view_range": [1, 1]}),
        ("glob", {"pattern": "**/*.py"}),
        ("grep", {"pattern": r"6 \* \d"}),
        ("bash", {"command": "cd src && X=42 && python3 answer.py"}),
        ("bash", {"command": "pwd; echo $X; exit 3"}),
    )

    async def work(url: str) -> Any:
        client = AsyncAnthropic(api_key="none", base_url=url, max_retries=0)
        async with client, ExecserverToolset(BOX, workdir=str(place)) as toolset:
            runner = client.beta.messages.tool_runner(
                model="scripted",
                max_tokens=100,
                tools=toolset.tools,
                messages=[{"role": "user", "content": "Go"}],
            )
            return await runner.until_done()

    with scripted(*calls) as (url, asked):
        last = asyncio.run(work(url))
    assert last.content[0].text == "Done."
    results = {
        block["tool_use_id"]: block
        for request in asked
        for message in request["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_result"
    }
    answers = [results[f"t{number}"] for number in reversed(range(len(calls)))]
    told = [text_of(answer["content"]) for answer in answers]
    assert [bool(answer.get("is_error")) for answer in answers] == [False] * 6 + [True]
    assert "1 replacement" in told[1]
    assert told[2] == "print(6 * 7)"
    assert told[3] == f"{place}/src/answer.py"
    assert told[4] == f"{place}/src/answer.py:1:print(6 * 7)"
    assert told[5] == "42"
    assert told[6] == f"{place}/src\n42\n[the shell ended with status 3]"
    names = [tool["name"] for tool in asked[0]["tools"]]
    assert names == ["bash", "read", "write", "edit", "glob", "grep"]


def test_commands_and_files_stay_in_the_working_folder(place: Path, outside: Path) -> None:
    (outside / "secret").write_text("secret")
    (place / "away").symlink_to(outside)

    async def work() -> None:
        async with ExecserverToolset(BOX, workdir=str(place)) as toolset:
            with pytest.raises(ToolError, match=r"exit status|denied|Read-only"):
                await called(toolset, "bash", command=f"touch {outside}/no")
            for path in ("away/secret", "../x", "/etc/passwd"):
                with pytest.raises(ToolError, match="outside the working directory"):
                    await called(toolset, "read", file_path=path)
            with pytest.raises(ToolError, match="outside the working directory"):
                await called(toolset, "write", file_path="away/no", content="")
            with pytest.raises(ToolError, match="relative"):
                await called(toolset, "glob", pattern="../*")

    asyncio.run(work())
    assert [each.name for each in outside.iterdir()] == ["secret"]


def test_the_shell_goes_on_starts_anew_after_a_timeout_and_can_be_restarted(place: Path) -> None:
    async def work() -> None:
        async with ExecserverToolset(BOX, workdir=str(place), max_output_bytes=4000) as toolset:
            assert await called(toolset, "bash", command="X=1; cd /; echo $X") == "1"
            with pytest.raises(ToolError, match=r"timed out after 0.3 s"):
                await called(toolset, "bash", command="sleep 600", timeout_ms=300)
            assert await called(toolset, "bash", command="echo [$X]; pwd") == f"[]\n{place}"
            assert await called(toolset, "bash", command="Y=2") == ""
            assert await called(toolset, "bash", restart=True) == "bash session restarted"
            assert await called(toolset, "bash", command="echo [$Y]; echo err >&2") == "[]\nerr"
            told = await called(toolset, "bash", command="seq 1 100000")
            assert told.startswith("1\n2\n")
            assert told.endswith("100000")
            assert len(told) < 4300
            with pytest.raises(ToolError, match="command is required"):
                await called(toolset, "bash")

    asyncio.run(work())


def test_a_cancelled_command_leaves_nothing_to_the_next_one(place: Path) -> None:
    async def work() -> None:
        async with ExecserverToolset(BOX, workdir=str(place)) as toolset:
            running = asyncio.create_task(
                called(toolset, "bash", command="echo $$ > pid; sleep 600; echo late")
            )
            while not (place / "pid").exists() or not (place / "pid").read_text():
                await asyncio.sleep(0.02)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await called(toolset, "bash", command="echo next") == "next"

    asyncio.run(work())


def test_files_are_read_as_text_or_as_content_blocks(place: Path) -> None:
    (place / "picture.png").write_bytes(b"\x89PNG")
    (place / "paper.pdf").write_bytes(b"%PDF")
    (place / "data.bin").write_bytes(b"\xff\xfe")
    (place / "long.txt").write_text("line\n" * 1000)
    os.mkfifo(place / "fifo")

    async def work() -> None:
        async with ExecserverToolset(BOX, workdir=str(place), max_file_bytes=1000) as toolset:
            (block,) = await called(toolset, "read", file_path="picture.png")
            assert block["type"] == "image"
            assert base64.b64decode(block["source"]["data"]) == b"\x89PNG"
            (block,) = await called(toolset, "read", file_path="paper.pdf")
            assert block["type"] == "document"
            assert await called(toolset, "read", file_path="long.txt", view_range=[3, 4]) == "line\nline"
            for path, reason in {
                "long.txt": "view_range",
                "data.bin": "not UTF-8",
                "fifo": "not a regular file",
                "missing": "no such file",
                ".": "not a regular file",
            }.items():
                with pytest.raises(ToolError, match=reason):
                    await called(toolset, "read", file_path=path)
            (place / "note.txt").write_text("x")
            with pytest.raises(ToolError, match="old_string not found"):
                await called(toolset, "edit", file_path="note.txt", old_string="a", new_string="b")

    asyncio.run(work())


def test_searches_tell_that_nothing_is_found_and_what_is_wrong(place: Path) -> None:
    async def work() -> None:
        async with ExecserverToolset(BOX, workdir=str(place)) as toolset:
            assert await called(toolset, "glob", pattern="*.py") == "no matches"
            assert await called(toolset, "grep", pattern="x") == "no matches"
            with pytest.raises(ToolError, match="grep"):
                await called(toolset, "grep", pattern="(")

    asyncio.run(work())


def test_a_box_that_is_not_there_is_an_error_of_each_tool(place: Path) -> None:
    async def work() -> None:
        async with ExecserverToolset("ws://127.0.0.1:9", workdir=str(place)) as toolset:
            with pytest.raises(ToolError, match="bash"):
                await called(toolset, "bash", command="true")
            with pytest.raises(ToolError, match="cannot be reached"):
                await called(toolset, "read", file_path="x")

    asyncio.run(work())
