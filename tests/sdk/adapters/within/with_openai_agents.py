"""The OpenAI Agents SDK on a box: an agent with a scripted model, and a session's whole life."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import signal
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import ModelResponse, RunConfig, Runner, Usage, set_tracing_disabled
from agents.models.interface import Model
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.session import SandboxSession
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.sandbox.types import User
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from execserver_adapters.openai_agents import (
    ExecserverSandboxClient,
    ExecserverSandboxClientOptions,
    Limits,
)

BOX = os.environ["EXECSERVER_TEST_BOX"]

# Something in the background that holds a lock as long as it lives; of the shell that begins it, its pid.
HOLDING = (
    "(flock 9; exec sleep 600 >/dev/null 2>&1) 9>lock & echo $! > pid; "
    "until ! flock -n lock true; do :; done; echo begun"
)

set_tracing_disabled(True)


class Scripted(Model):
    """A model that calls tools one after the other, then says that it is done."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self._calls = [*calls]
        self.told: list[str] = []  # what the tools answered

    async def get_response(
        self, system_instructions: Any, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        if not isinstance(input, str):
            self.told = [each["output"] for each in input if each.get("type") == "function_call_output"]
        return ModelResponse(output=[self._next()], usage=Usage(), response_id=None)

    def stream_response(self, *rest: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError

    def _next(self) -> Any:
        if self._calls:
            name, arguments = self._calls.pop(0)
            return ResponseFunctionToolCall(
                type="function_call",
                name=name,
                arguments=json.dumps(arguments),
                call_id=f"c{len(self._calls)}",
            )
        text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
        return ResponseOutputMessage(
            id="m", type="message", role="assistant", status="completed", content=[text]
        )


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


async def session_in(place: Path, **options: Any) -> SandboxSession:
    return await ExecserverSandboxClient(BOX, **options).create(manifest=Manifest(root=str(place)))


def test_an_agent_works_in_a_folder_of_its_own(tmp_path: Path) -> None:
    model = Scripted(
        ("exec_command", {"cmd": "pwd; cat greeting.txt; echo more >> greeting.txt", "login": False}),
        ("exec_command", {"cmd": "cat greeting.txt; exit 3"}),
        ("exec_command", {"cmd": 'read name; echo "I am $name"', "tty": True, "yield_time_ms": 250}),
    )
    agent = SandboxAgent(
        name="Dev",
        model=model,
        instructions="Work.",
        default_manifest=Manifest(entries={"greeting.txt": File(content=b"hello\n")}),
    )
    config = RunConfig(sandbox=SandboxRunConfig(client=ExecserverSandboxClient(BOX)), tracing_disabled=True)
    result = asyncio.run(Runner.run(agent, "Go", run_config=config))
    assert result.final_output == "Done."
    folder = Path(model.told[0].split("Output:\n")[1].splitlines()[0])
    assert folder.name.startswith("execserver-agent-")
    assert "hello" in model.told[0]
    assert "Process exited with code 3" in model.told[1]
    assert "hello\nmore" in model.told[1]
    assert "Process running with session ID" in model.told[2]
    assert not folder.exists()


def test_a_terminal_goes_on_between_turns_and_is_typed_into(place: Path) -> None:
    async def work() -> None:
        async with await session_in(place) as session:
            begun = await session.pty_exec_start("read name; echo I am $name", tty=True, yield_time_s=0.25)
            assert begun.process_id is not None
            told = await session.pty_write_stdin(
                session_id=begun.process_id, chars="Nobody\n", yield_time_s=20
            )
            assert b"I am Nobody" in told.output
            assert (told.exit_code, told.process_id) == (0, None)
            with pytest.raises(PtySessionNotFoundError):
                await session.pty_write_stdin(session_id=begun.process_id, chars="")

    asyncio.run(work())


def test_a_process_without_a_terminal_takes_no_input_and_is_ended_with_the_session(place: Path) -> None:
    lock = place / "lock"  # held as long as the process lives, whatever its pid is in its sandbox

    async def work() -> None:
        async with await session_in(place) as session:
            begun = await session.pty_exec_start("exec flock lock sleep 600", yield_time_s=0.25)
            assert begun.process_id is not None
            with pytest.raises(RuntimeError, match="stdin is not available"):
                await session.pty_write_stdin(session_id=begun.process_id, chars="x")
            while not lock.exists():
                await asyncio.sleep(0.02)

    asyncio.run(work())
    wait_until_free(lock)


def test_commands_and_files_are_kept_in_the_workspace(place: Path, outside: Path) -> None:
    (outside / "secret").write_text("secret")
    (place / "away").symlink_to(outside)
    (place / "nowhere").symlink_to(outside / "new")

    async def work() -> None:
        async with await session_in(place) as session:
            refused = await session.exec(f"touch {outside}/no")
            assert not refused.ok()
            for path in ("away/secret", "../outside", "/etc/passwd"):
                with pytest.raises(InvalidManifestPathError):
                    await session.read(Path(path))
            for path in ("away/new", "nowhere", str(outside / "new")):
                with pytest.raises(InvalidManifestPathError):
                    await session.write(Path(path), io.BytesIO(b"x"))

    asyncio.run(work())
    assert sorted(each.name for each in outside.iterdir()) == ["secret"]


def test_files_are_written_read_listed_moved_and_removed(place: Path) -> None:
    async def work() -> None:
        async with await session_in(place) as session:
            await session.write(Path("a/b/data"), io.BytesIO(bytes(range(256))))
            assert (await session.read(Path("a/b/data"))).read() == bytes(range(256))
            assert await session.read_bounded(Path("a/b/data"), max_bytes=3) == b"\x00\x01\x02"
            assert [entry.path for entry in await session.ls("a/b")] == [f"{place}/a/b/data"]
            await session.mv("a/b/data", "a/moved")
            await session.rm("a/b", recursive=True)
            with pytest.raises(WorkspaceReadNotFoundError):
                await session.read(Path("a/b/data"))
            diff = {"type": "create_file", "path": "new.txt", "diff": "+first\n+second"}
            await session.apply_patch(diff)

    asyncio.run(work())
    assert (place / "a" / "moved").read_bytes() == bytes(range(256))
    assert (place / "new.txt").read_text() == "first\nsecond"


def test_a_new_file_never_replaces_one(place: Path) -> None:
    (place / "there").write_text("old")

    async def work() -> None:
        async with await session_in(place) as session:
            with pytest.raises(FileExistsError):
                await session._write_new_file(Path("there"), io.BytesIO(b"new"))

    asyncio.run(work())
    assert (place / "there").read_text() == "old"


def test_limits_are_errors_of_the_framework(place: Path) -> None:
    (place / "large").write_bytes(bytes(5000))

    async def work() -> None:
        limits = Limits(output=2000, file=4000, command=0.5)
        async with await session_in(place, limits=limits) as session:
            with pytest.raises(ExecTimeoutError):
                await session.exec("sleep 600")
            with pytest.raises(ExecTimeoutError):
                await session.exec("sleep 600", timeout=0.2)
            with pytest.raises(ExecTransportError, match="2000 bytes"):
                await session.exec("seq 1 10000", timeout=30)
            with pytest.raises(WorkspaceArchiveReadError):
                await session.read(Path("large"))
            with pytest.raises(WorkspaceArchiveWriteError):
                await session.write(Path("larger"), io.BytesIO(bytes(5000)))

    asyncio.run(work())


def test_secrets_of_the_server_are_not_inherited_and_the_manifests_variables_are_set(place: Path) -> None:
    async def work() -> None:
        client = ExecserverSandboxClient(BOX, env={"OWN": "client"})
        manifest = Manifest(root=str(place), environment={"value": {"NAME": "manifest"}})
        async with await client.create(manifest=manifest) as session:
            told = await session.exec("echo $OWN $NAME $HOME; env")
        lines = told.stdout.decode().splitlines()
        assert lines[0] == f"client manifest {place}"
        assert not [line for line in lines if line.startswith("PYTHONPATH=")]

    asyncio.run(work())


def test_a_snapshot_brings_a_workspace_back_after_its_folder_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        client = ExecserverSandboxClient(BOX)
        entries = {
            "src": Dir(children={"given": File(content=b"given")}),
            "gone": File(content=b"x", ephemeral=True),
        }
        manifest = Manifest(entries=entries)
        snapshot = LocalSnapshotSpec(base_path=tmp_path / "snapshots")
        session = await client.create(manifest=manifest, snapshot=snapshot)
        async with session:
            await session.exec("echo made > made; ln -s made link; chmod 750 made")
            folder = Path(session.state.manifest.root)
        payload = client.serialize_session_state(session.state)
        await client.delete(session)
        assert not folder.exists()

        again = ExecserverSandboxClient(BOX)
        state = again.deserialize_session_state(json.loads(json.dumps(payload, default=str)))
        resumed = await again.resume(state)
        async with resumed:
            told = await resumed.exec("cat link src/given; stat -c %a made; ls gone")
            assert told.stdout.decode().split() == ["made", "given750", "gone"]
        await again.delete(resumed)
        assert not folder.exists()

    asyncio.run(work())


def test_a_kept_session_is_attached_again_and_what_is_in_the_background_goes_on(place: Path) -> None:
    async def work() -> None:
        client = ExecserverSandboxClient(BOX, keep=300, sandbox="full-access")
        session = await client.create(manifest=Manifest(root=str(place)))
        async with session:
            assert (await session.exec(HOLDING + " >/dev/null")).ok()
        payload = client.serialize_session_state(session.state)
        resumed = await client.resume(client.deserialize_session_state(payload))
        async with resumed:
            assert box_session_of(resumed) == box_session_of(session) is not None
            assert not is_free(place / "lock")
        await client.delete(resumed)
        assert box_session_of(resumed) is None

    try:
        asyncio.run(work())
    finally:
        os.kill(int((place / "pid").read_text()), signal.SIGKILL)
    wait_until_free(place / "lock")


def box_session_of(session: SandboxSession) -> str | None:
    found: str | None = session.state.model_dump()["box_session_id"]
    return found


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


def test_an_exposed_port_can_be_reached_from_here(place: Path) -> None:
    (place / "page").write_text("from the box")

    async def work() -> None:
        client = ExecserverSandboxClient(BOX, network=True)
        with socket_of_its_own() as port:
            pass
        options = ExecserverSandboxClientOptions(exposed_ports=(port,))
        session = await client.create(manifest=Manifest(root=str(place)), options=options)
        async with session:
            await session.pty_exec_start(
                f"exec python3 -u -m http.server --bind 127.0.0.1 {port}", yield_time_s=1
            )
            endpoint = await session.resolve_exposed_port(port)
            url = endpoint.url_for("http") + "page"
            found = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=20).read())
            assert found == b"from the box"
            with pytest.raises(ExposedPortUnavailableError):
                await session.resolve_exposed_port(port + 1)

    asyncio.run(work())


def socket_of_its_own() -> Any:
    from contextlib import contextmanager
    from socket import create_server

    @contextmanager
    def bound() -> Iterator[int]:
        with create_server(("127.0.0.1", 0)) as sock:
            yield sock.getsockname()[1]

    return bound()


def test_what_would_change_the_machine_is_refused(place: Path) -> None:
    async def work() -> None:
        client = ExecserverSandboxClient(BOX)
        with pytest.raises(ValueError, match="accounts of the box"):
            await client.create(manifest=Manifest(root=str(place), users=[User(name="agent")]))

    asyncio.run(work())


def test_a_box_that_is_not_there_is_an_error_of_the_start(place: Path) -> None:
    async def work() -> None:
        session = await ExecserverSandboxClient("ws://127.0.0.1:9").create(manifest=Manifest(root=str(place)))
        with pytest.raises(WorkspaceStartError):
            await session.start()
        assert not await session.running()

    asyncio.run(work())


def test_a_changed_state_removes_no_folder_of_somebody_else(place: Path) -> None:
    (place / "mine").touch()

    async def work() -> None:
        client = ExecserverSandboxClient(BOX)
        session = await client.create(manifest=Manifest(root=str(place)))
        async with session:
            pass
        payload = client.serialize_session_state(session.state)
        payload["workspace_root_owned"] = True
        await client.delete(await client.resume(client.deserialize_session_state(payload)))

    asyncio.run(work())
    assert (place / "mine").exists()
