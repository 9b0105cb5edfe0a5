"""Inspect on a box: its own checks of a sandbox, an evaluation with a scripted model, and what we promise."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelAPI, ModelOutput, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState
from inspect_ai.tool import bash
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from execserver_adapters.inspect_ai import ExecserverConfig, ExecserverSandboxEnvironment
from tests.sdk.adapters.page import snippet

pytestmark = pytest.mark.anyio
BOX = os.environ["EXECSERVER_TEST_BOX"]
IS_ROOT = os.geteuid() == 0  # and so is the server
# Root may read and write whatever the mode of a file says.
_NOT_AS_ROOT = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}
# It adds a user to the machine, which a test must not; see test_a_command_runs_as_another_user.
del globals()["test_exec_as_user"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["full-access", "workspace-write"])
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEnvironment]:
    name = getattr(request.node, "originalname", "")
    if IS_ROOT and name in _NOT_AS_ROOT:
        pytest.xfail("the server runs as root, who reads and writes whatever the modes say")
    async with _Opened(sandbox=request.param) as environment:
        yield environment


class _Opened:
    """A sample's environment, made and ended as Inspect does it."""

    def __init__(self, **settings: Any) -> None:
        self.config = ExecserverConfig(**{"box": BOX, **settings})

    async def __aenter__(self) -> ExecserverSandboxEnvironment:
        self._made = await ExecserverSandboxEnvironment.sample_init("task", self.config, {})
        return self._made["default"].as_type(ExecserverSandboxEnvironment)

    async def __aexit__(self, *rest: object) -> None:
        await ExecserverSandboxEnvironment.sample_cleanup("task", self.config, self._made, False)


async def test_a_samples_folder_is_private_and_goes_with_the_sample() -> None:
    async with _Opened() as environment:
        await environment.write_file("a/b", "text")
        assert Path(environment.folder, "a", "b").read_text() == "text"
        assert Path(environment.folder).stat().st_mode & 0o777 == 0o700
    assert not Path(environment.folder).exists()


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that no sandbox here may write to; a home may lie below the temporary folders of the box."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


async def test_the_sandbox_holds_for_commands_and_files(outside: Path) -> None:
    name = "new"
    async with _Opened() as environment:
        result = await environment.exec(["sh", "-c", f"echo x > {name}"], cwd=str(outside))
        assert not result.success
        with pytest.raises(OSError):
            await environment.write_file(f"{outside}/{name}", "x")
    assert [*outside.iterdir()] == []


async def test_variables_are_those_of_the_task_and_of_the_call() -> None:
    async with _Opened(env={"A": "task", "B": "task"}) as environment:
        result = await environment.exec(["sh", "-c", 'echo $A $B; test -n "$PATH"'], env={"B": "call"})
    assert (result.stdout, result.success) == ("task call\n", True)


async def test_of_much_output_the_end_is_returned() -> None:
    async with _Opened() as environment:
        with override_max_exec_output_size(1000):
            result = await environment.exec(["sh", "-c", "seq 100000; echo the end"])
    assert result.success
    assert len(result.stdout) == 1000
    assert result.stdout.endswith("100000\nthe end\n")


async def test_a_missing_program_is_a_failed_result() -> None:
    async with _Opened() as environment:
        # In a PATH with a closed folder nobody can tell a program that is missing from one that is closed.
        result = await environment.exec(["no-such-program-here"], env={"PATH": "/usr/bin:/bin"})
    assert (result.success, result.returncode) == (False, 127)
    assert "no-such-program-here" in result.stderr


async def test_what_was_printed_before_a_time_limit_comes_with_the_error() -> None:
    async with _Opened() as environment:
        with pytest.raises(TimeoutError) as caught:
            await environment.exec(["sh", "-c", "echo begun; sleep 60"], timeout=1)
    assert caught.value.truncated_output == "begun\n"  # type: ignore[attr-defined]


async def test_a_file_that_is_no_text_is_no_text() -> None:
    async with _Opened() as environment:
        await environment.write_file("binary", b"\xff\xfe")
        with pytest.raises(UnicodeDecodeError):
            await environment.read_file("binary")


async def test_what_goes_on_in_the_background_holds_up_nothing() -> None:
    async with _Opened() as environment:
        result = await environment.exec(["sh", "-c", "(while :; do echo noise; sleep 0.1; done) & echo done"])
        assert result.stdout.startswith(("done\n", "noise\n"))
        for _ in range(5):
            assert (await environment.exec(["true"])).success


@pytest.mark.skipif(not IS_ROOT, reason="only a server of root can become another user")
async def test_a_command_runs_as_another_user() -> None:
    async with _Opened(sandbox="full-access") as environment:
        result = await environment.exec(["sh", "-c", "id -un; id -u; echo $HOME"], user="daemon", cwd="/")
        assert result.stdout.splitlines()[0] == "daemon", result
        by_number = await environment.exec(["id", "-un"], user="1", cwd="/")
        assert by_number.stdout == "daemon\n"


async def test_other_users_are_refused_inside_a_sandbox() -> None:
    async with _Opened() as environment:
        with pytest.raises(SandboxUserUnsupportedError, match="daemon"):
            await environment.exec(["id"], user="daemon")


async def test_a_file_above_the_limit_is_refused_before_it_is_sent() -> None:
    async with _Opened() as environment:
        await environment.exec(["truncate", "-s", "300M", "large"])
        with pytest.raises(OutputLimitExceededError):
            await environment.read_file("large", text=False)


async def test_a_box_that_cannot_be_reached_is_told_as_such() -> None:
    with pytest.raises(SandboxUnavailableError, match="no connection"):
        await ExecserverSandboxEnvironment.sample_init("task", ExecserverConfig(box="ws://127.0.0.1:1"), {})


async def test_a_person_is_told_the_way() -> None:
    async with _Opened() as environment:
        told = await environment.connection()
    assert told.command == f"execserver shell {BOX} --cwd {environment.folder}"


@pytest.mark.parametrize("settings", [{"sandbox": "none"}, {"folder": "relative"}, {"boxes": "x"}])
def test_settings_that_are_none_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        ExecserverConfig(**settings)


@pytest.fixture
def counted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count tokens by words: Inspect's way downloads a table, and a scripted model has none of its own."""

    async def count_text_tokens(self: object, text: str) -> int:
        return len(text.split())

    monkeypatch.setattr(ModelAPI, "count_text_tokens", count_text_tokens)


@scorer(metrics=[accuracy()])
def file_scorer() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        found = await sandbox().read_file("answer.txt")
        return Score(value=1 if found.strip() == target.text else 0, answer=found)

    return score


@pytest.mark.usefixtures("counted_here")
def test_an_agent_with_a_scripted_model_solves_samples_each_in_its_own_folder(tmp_path: Path) -> None:
    def scripted() -> list[ModelOutput]:
        return [
            ModelOutput.for_tool_call("mockllm", "bash", {"command": "ls; cat given.txt > answer.txt"}),
            ModelOutput.for_tool_call("mockllm", "submit", {"answer": "done"}),
        ]

    samples = [
        Sample(
            input="Copy the file.",
            target=str(n),
            files={"given.txt": f"{n}\n"},
            setup="#!/bin/bash\ntouch set-up",
        )
        for n in range(3)
    ]
    task = Task(
        dataset=samples,
        solver=react(tools=[bash(timeout=30)]),
        scorer=file_scorer(),
        sandbox=SandboxEnvironmentSpec("execserver", ExecserverConfig(box=BOX)),
    )
    model = get_model("mockllm/model", custom_outputs=[each for _ in samples for each in scripted()])
    (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none", max_samples=1)
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1
    assert log.samples is not None
    told = [str(m.text) for s in log.samples for m in s.messages if m.role == "tool"]
    assert any("given.txt" in each and "set-up" in each for each in told)


@pytest.mark.usefixtures("counted_here")
def test_the_snippet_evaluates_a_task_on_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    calls = [
        ModelOutput.for_tool_call("mockllm", "bash", {"command": "cat given.txt"}),
        ModelOutput.for_tool_call("mockllm", "submit", {"answer": "hello"}),
    ]
    code = snippet("Inspect", BOX, "")
    module = compile(code, "adapters.md", "exec")
    names: dict[str, Any] = {"model": get_model("mockllm/model", custom_outputs=calls)}
    exec(module, names)  # the page is ours; `eval` of Inspect runs a loop of its own
    (log,) = names["logs"]
    assert log.status == "success", log.error
    told = [m.text.strip() for m in log.samples[0].messages if m.role == "tool"]
    assert told[0].endswith("hello")  # a login shell may say something of its own before


@pytest.mark.usefixtures("counted_here")
def test_a_task_takes_the_default_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECSERVER_BOX", BOX)
    model = get_model("mockllm/model", custom_outputs=[ModelOutput.from_content("mockllm", "hello")])
    task = Task(dataset=[Sample(input="hi", files={"a": "b"})], sandbox="execserver")
    (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
