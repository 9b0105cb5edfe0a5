"""Deep Agents on a box: an agent with a scripted model, and what only this backend promises."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

from execserver_adapters.deepagents import ExecserverSandbox

BOX = os.environ["EXECSERVER_TEST_BOX"]

# Something in the background that holds a lock as long as it lives; of the shell that begins it, its pid.
HOLDING = (
    "(flock 9; exec sleep 600 >/dev/null 2>&1) 9>lock & echo $! > pid; "
    "until ! flock -n lock true; do :; done; echo begun"
)


class Scripted(GenericFakeChatModel):
    """A model that says what it was told to, whatever it is asked."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Scripted:
        return self


def calling(name: str, number: int, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{number}"}])


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


@pytest.fixture
def backend(place: Path) -> Iterator[ExecserverSandbox]:
    with ExecserverSandbox(BOX, workdir=str(place)) as made:
        yield made


def test_an_agent_writes_reads_edits_searches_and_runs(backend: ExecserverSandbox, place: Path) -> None:
    code = f"{place}/answer.py"
    steps = [
        calling("write_file", 1, file_path=code, content="print(6 * 8)\n"),
        calling("edit_file", 2, file_path=code, old_string="8", new_string="7"),
        calling("grep", 3, pattern="6 * 7", path=str(place), output_mode="content"),
        calling("glob", 4, pattern="*.py", path=str(place)),
        calling("execute", 5, command="python3 answer.py"),
        AIMessage("It is 42."),
    ]
    agent = create_deep_agent(model=Scripted(messages=iter(steps)), backend=backend)
    messages = agent.invoke({"messages": [("user", "What is it?")]})["messages"]
    told = [message.text for message in messages if isinstance(message, ToolMessage)]
    assert messages[-1].text == "It is 42."
    assert (place / "answer.py").read_text() == "print(6 * 7)\n"
    assert "6 * 7" in told[2]
    assert "answer.py" in told[3]
    assert told[4].startswith("42")


def test_an_asynchronous_agent_does_the_same(backend: ExecserverSandbox) -> None:
    steps = [calling("execute", 1, command="echo from the box; exit 3"), AIMessage("Done.")]
    agent = create_deep_agent(model=Scripted(messages=iter(steps)), backend=backend)
    messages = asyncio.run(agent.ainvoke({"messages": [("user", "Go")]}))["messages"]
    (told,) = (message for message in messages if isinstance(message, ToolMessage))
    assert "from the box" in told.text
    assert told.artifact["exit_code"] == 3


def test_commands_and_uploads_write_to_the_working_folder_only(
    backend: ExecserverSandbox, place: Path, outside: Path
) -> None:
    refused = backend.execute(f"touch {outside}/no || echo refused; touch yes")
    assert "refused" in refused.output
    (answer,) = backend.upload_files([(f"{outside}/no", b"")])
    assert answer.error is not None
    assert [*outside.iterdir()] == []
    assert (place / "yes").exists()


def test_a_command_that_takes_too_long_is_ended_and_says_so(backend: ExecserverSandbox, place: Path) -> None:
    answer = backend.execute("echo begun; sleep 600; touch late", timeout=1)
    assert answer.exit_code == 124
    assert answer.output.startswith("begun\n")
    assert "timed out after 1 s" in answer.output


def test_of_much_output_the_beginning_and_the_end_stay(place: Path) -> None:
    with ExecserverSandbox(BOX, workdir=str(place), max_output_bytes=2000) as backend:
        answer = backend.execute("seq 1 100000")
    assert answer.truncated
    assert answer.exit_code == 0
    assert answer.output.startswith("1\n2\n")
    assert answer.output.endswith("100000\n")


def is_free(lock: Path) -> bool:
    """Tell whether nobody holds a lock, and with it whether its process has ended."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def wait_until_free(lock: Path) -> None:
    deadline = time.monotonic() + 30
    while not is_free(lock):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("sandbox", ["full-access", "workspace-write"])
def test_what_a_command_leaves_behind_goes_on_outside_of_a_sandbox_only(place: Path, sandbox: str) -> None:
    lock = place / "lock"
    with ExecserverSandbox(BOX, workdir=str(place), sandbox=sandbox) as backend:
        assert backend.execute(HOLDING).output == "begun\n"
        if sandbox == "full-access":
            assert not is_free(lock)
            os.kill(int((place / "pid").read_text()), signal.SIGKILL)
        wait_until_free(lock)


def test_a_cancelled_command_is_ended(backend: ExecserverSandbox, place: Path) -> None:
    lock = place / "lock"

    async def cancel() -> None:
        running = asyncio.create_task(backend.aexecute("exec flock lock sleep 600"))
        while not lock.exists() or is_free(lock):
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    wait_until_free(lock)
    assert backend.execute("echo still here").output == "still here\n"


def test_the_folder_of_its_own_is_private_and_removed() -> None:
    with ExecserverSandbox(BOX) as backend:
        folder = Path(backend.workdir)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert backend.execute("pwd").output.strip() == str(folder)
    assert not folder.exists()


def test_a_download_that_fails_says_why_in_the_words_of_the_framework(
    backend: ExecserverSandbox, place: Path
) -> None:
    answers = backend.download_files([str(place), f"{place}/missing", "relative"])
    assert [answer.error for answer in answers] == ["is_directory", "file_not_found", "invalid_path"]


def test_a_sandbox_that_is_none_is_refused_before_anything_is_connected() -> None:
    with pytest.raises(ValueError, match="workspace-writ"):
        ExecserverSandbox("ws://127.0.0.1:1", sandbox="workspace-writ")
