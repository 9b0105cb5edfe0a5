"""The examples in the docstrings of the asyncio client: each runs as it stands, with a box of its own."""

from __future__ import annotations

import ast
import asyncio
import re
import socket
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from execserver_client.box import Box
from tests.sdk.boxes import with_box
from tests.support.source import ROOT

HERE = "127.0.0.1"
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)
Example = Callable[..., Awaitable[None]]


def examples() -> dict[str, str]:
    """Return all examples below the name of what they are about; those of the twin are made from them."""
    found: dict[str, str] = {}
    package = ROOT / "sdk" / "execserver_client"
    for path in sorted(package.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found |= dict(_of_methods(node))
    return found


def _of_methods(owner: ast.ClassDef) -> list[tuple[str, str]]:
    methods = [each for each in owner.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [
        (f"{owner.name}.{each.name}", textwrap.dedent(code))
        for each in methods
        for code in FENCE.findall(ast.get_docstring(each) or "")
    ]


def as_function(code: str, parameters: str, **replaced: str) -> Example:
    """Return an example as a coroutine function; what it takes for granted is replaced, once each."""
    for given, here in replaced.items():
        assert code.count(given) == 1, code
        code = code.replace(given, here)
    names: dict[str, Any] = {}
    exec(f"async def example({parameters}):\n{textwrap.indent(code, '    ')}", names)
    example: Example = names["example"]
    return example


@asynccontextmanager
async def saying(text: bytes) -> AsyncIterator[tuple[int, asyncio.Queue[bytes]]]:
    """A listener here that says something to whoever connects; gives its port and what it hears first."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(await reader.read(1000))
        writer.write(text)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(greet, HERE, 0)
    try:
        yield server.sockets[0].getsockname()[1], heard
    finally:
        server.close()


async def http_stream(box: Box, code: str) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbody"
    async with saying(answer) as (port, heard):
        await as_function(code, "box, url")(box, f"http://{HERE}:{port}/it")
        assert (await heard.get()).startswith(b"GET /it HTTP/1.1\r\n")


async def open_port(box: Box, code: str) -> None:
    async with saying(b"there") as (port, heard):
        await as_function(code, "box", **{"5432": str(port)})(box)
        assert await heard.get() == b"hello"


async def listen_on_port(box: Box, code: str) -> None:
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    listening = asyncio.ensure_future(as_function(code, "box", **{"8080": str(port)})(box))
    async with asyncio.timeout(20):
        while not listening.done():
            if any(each.port == port for each in (await box.ports.list()).listening):
                break
            await asyncio.sleep(0.01)
    assert not listening.done()  # it waits for connections
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening


SCENES = {"Http.stream": http_stream, "Ports.open": open_port, "Ports.listen": listen_on_port}


@pytest.mark.parametrize("name", SCENES)
def test_an_example_runs(name: str, url: str) -> None:
    code = examples()[name]
    with_box(url, lambda box: SCENES[name](box, code))


def test_every_example_has_its_scene() -> None:
    """That of the package is played in `test_connecting`."""
    assert examples().keys() == SCENES.keys()
