"""A server that is a child of the asyncio client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import execserver_client
from execserver.client.errors import ProtocolViolation, StartFailed, TransportClosed
from execserver_client._stdio import StdioTransport
from tests.sdk.support import run_async
from tests.support.programs import write_script
from tests.support.server_process import OURS, base_environment

ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
STUBBORN = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\n"
    "while True: signal.pause()"
)

Use = Callable[[StdioTransport], Awaitable[None]]


def with_child(code: str, use: Use, *, limit: int = 1 << 20, patience: float = 2.0) -> None:
    """Use a Python child; `run_async` sees that it ends."""

    async def main() -> None:
        argv = [sys.executable, "-ISc", code]
        transport = await StdioTransport.start(argv, None, limit, patience=patience)
        try:
            await use(transport)
        finally:
            await transport.close()
            await transport.close()

    run_async(main())


def test_a_real_server_answers_and_ends() -> None:
    async def main() -> None:
        argv = [*OURS.argv, "--listen", "stdio"]
        transport = await StdioTransport.start(argv, base_environment(), 1 << 20, patience=20, grace=20)
        try:
            await transport.send(b'{"id":1,"method":"initialize","params":{"clientName":"t"}}')
            answer = await transport.receive()
            assert answer is not None
            assert json.loads(answer)["id"] == 1
        finally:
            await transport.close()

    run_async(main())


def test_lines_go_both_ways_whatever_their_size() -> None:
    async def use(transport: StdioTransport) -> None:
        messages = [b"a", b"b" * 900_000, b"c"]
        sender = asyncio.gather(*(transport.send(message) for message in messages))
        assert [await transport.receive() for _ in messages] == messages
        await sender

    with_child(ECHO, use)


def test_the_end_of_the_child_is_the_end() -> None:
    async def use(transport: StdioTransport) -> None:
        assert await transport.receive() == b"last"
        assert await transport.receive() is None
        assert await transport.receive() is None

    with_child("print('last')", use)


def test_what_is_sent_to_a_child_that_ended_fails() -> None:
    async def use(transport: StdioTransport) -> None:
        assert [await transport.receive(), await transport.receive()] == [b"{}", None]
        with pytest.raises(TransportClosed, match="broke"):  # noqa: PT012 - the pipe may take some before it breaks
            for _ in range(100):
                await transport.send(b"x" * 100_000)

    with_child("print('{}')", use)


def test_a_line_without_end_is_a_violation() -> None:
    async def use(transport: StdioTransport) -> None:
        with pytest.raises(ProtocolViolation, match="longer than 5000 bytes"):
            await transport.receive()

    with_child("import sys; sys.stdout.write('x' * 10**6)", use, limit=5000)


def test_a_child_that_writes_faster_than_we_read_waits() -> None:
    async def use(transport: StdioTransport) -> None:
        while not transport._output.inbox._is_paused:
            await asyncio.sleep(0.001)
        assert transport._output.inbox._held < 4 * 1024 * 1024
        for number in range(200):
            assert await transport.receive() == b"%6d" % number + b"y" * 50_000
        assert await transport.receive() is None

    with_child("for n in range(200): print('%6d' % n + 'y' * 50_000)", use)


def test_a_child_that_ignores_the_signal_is_killed() -> None:
    async def use(transport: StdioTransport) -> None:
        assert await transport.receive() == b"ready"
        await transport.close()
        with pytest.raises(ProcessLookupError):
            os.kill(transport.pid, 0)

    with_child(STUBBORN, use, patience=0.05)


def test_a_child_that_is_stopped_ends_too() -> None:
    async def use(transport: StdioTransport) -> None:
        assert await transport.receive() == b"ready"
        os.kill(transport.pid, signal.SIGSTOP)

    with_child(STUBBORN, use, patience=0.05)


def test_a_close_that_is_cancelled_leaves_no_child() -> None:
    async def use(transport: StdioTransport) -> None:
        assert await transport.receive() == b"ready"
        task = asyncio.create_task(transport.close())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_child(STUBBORN, use, patience=3600)


@pytest.mark.parametrize("argv", [[], ["/nonexistent/program"], ["a\0b"]])
def test_a_program_that_cannot_be_started_is_told(argv: list[str]) -> None:
    async def main() -> None:
        with pytest.raises(StartFailed, match="cannot start"):
            await StdioTransport.start(argv, None, 1000)

    run_async(main())


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 3", "ended with status 3 before it answered"),
        ("kill -9 $$", "was killed by SIGKILL before it answered"),
        ("exec 0<&- 1>&-; sleep 60", "closed its output before it answered"),
    ],
)
def test_a_program_that_is_no_server_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, told: str
) -> None:
    program = write_script(tmp_path / "program", script)
    monkeypatch.setenv("EXECSERVER_PROGRAM", str(program))
    monkeypatch.delenv("EXECSERVER_BOX", raising=False)

    async def main() -> None:
        with pytest.raises(StartFailed) as raised:
            await execserver_client.connect()
        assert str(raised.value) == f"{program} {told}"
        assert "--version" in raised.value.hint

    run_async(main())
