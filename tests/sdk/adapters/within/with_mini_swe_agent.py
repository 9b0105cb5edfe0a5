"""mini-SWE-agent on a box: its agent with a scripted model, and what the environment promises."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

from execserver_adapters.mini_swe_agent import ExecserverEnvironment
from tests.sdk.adapters.page import run_snippet, snippet

BOX = os.environ["EXECSERVER_TEST_BOX"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def environment(place: Path) -> Iterator[ExecserverEnvironment]:
    with ExecserverEnvironment(box=BOX, cwd=str(place)) as environment:
        yield environment


def execute(environment: ExecserverEnvironment, command: str, **more: Any) -> dict[str, Any]:
    return environment.execute({"command": command}, **more)


def test_an_agent_with_a_scripted_model_works_and_submits(place: Path) -> None:
    steps = [
        make_output("look", [{"command": "pwd; printf 'x = 1\\n' > code.py"}]),
        make_output("check", [{"command": "grep -c x code.py; exit 3"}]),
        make_output("done", [{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat code.py"}]),
    ]
    config = {
        "environment_class": "execserver_adapters.mini_swe_agent.ExecserverEnvironment",
        "box": BOX,
        "cwd": str(place),
    }
    environment = get_environment(config)
    agent = DefaultAgent(
        DeterministicModel(outputs=steps),
        environment,
        system_template="You use {{system}} {{machine}}.",
        instance_template="{{task}}",
    )
    result = agent.run("write code")
    assert result == {"exit_status": "Submitted", "submission": "x = 1\n"}
    told = "\n".join(str(message["content"]) for message in agent.messages)
    assert f"You use {os.uname().sysname} {os.uname().machine}." in told
    assert f"<returncode>0</returncode>\n<output>\n{place}\n</output>" in told
    assert "<returncode>3</returncode>\n<output>\n1\n</output>" in told
    saved = agent.save(None)["info"]["config"]
    assert saved["environment_type"] == "execserver_adapters.mini_swe_agent.ExecserverEnvironment"
    assert saved["environment"]["box"] == BOX
    environment.cleanup()


def test_the_snippet_lets_an_agent_work_on_the_box(place: Path) -> None:
    steps = [
        make_output("look", [{"command": "pwd > where"}]),
        make_output("done", [{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat where"}]),
    ]
    code = snippet("mini-SWE-agent", BOX, str(place))
    names = asyncio.run(run_snippet(code, model=DeterministicModel(outputs=steps)))
    assert names["result"] == {"exit_status": "Submitted", "submission": f"{place}\n"}


def test_both_streams_come_in_the_order_they_were_written(environment: ExecserverEnvironment) -> None:
    done = execute(environment, "for n in 1 2 3; do echo out $n; echo err $n >&2; done")
    assert done == {
        "output": "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n",
        "returncode": 0,
        "exception_info": "",
    }


def test_a_time_limit_ends_the_command_and_keeps_what_it_printed(
    environment: ExecserverEnvironment, place: Path
) -> None:
    done = execute(environment, "echo begun; sleep 60; touch late", timeout=1)
    assert (done["output"], done["returncode"]) == ("begun\n", -1)
    assert "after 1 seconds" in done["exception_info"]
    assert done["extra"]["exception_type"] == "TimedOut"
    assert execute(environment, "echo still here")["output"] == "still here\n"
    assert not (place / "late").exists()


def test_much_output_loses_its_middle(place: Path) -> None:
    with ExecserverEnvironment(box=BOX, cwd=str(place), max_output_bytes=1000) as environment:
        output = execute(environment, "seq 100000")["output"]
    assert output.startswith("1\n2\n3\n")
    assert output.endswith("99999\n100000\n")
    assert "bytes left out" in output
    assert len(output) < 1100


def test_variables_and_the_folder_are_as_the_settings_say(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_HERE", "forwarded")
    (place / "below").mkdir()
    settings: dict[str, Any] = {"env": {"A": "1"}, "forward_env": ["OF_HERE", "NOT_SET"]}
    with ExecserverEnvironment(box=BOX, cwd=str(place), **settings) as environment:
        assert execute(environment, "echo $A $OF_HERE")["output"] == "1 forwarded\n"
        assert execute(environment, "pwd", cwd="below")["output"] == f"{place}/below\n"
        assert execute(environment, "pwd", cwd="/")["output"] == "/\n"


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that no sandbox here may write to; a home may lie below the temporary folders of the box."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def test_only_the_folder_can_be_written_wherever_a_command_starts(
    environment: ExecserverEnvironment, outside: Path
) -> None:
    done = execute(environment, "echo x > new", cwd=str(outside))
    assert done["returncode"] != 0
    assert [*outside.iterdir()] == []


def test_full_access_has_to_be_asked_for(place: Path, outside: Path) -> None:
    file = outside / "new"
    with ExecserverEnvironment(box=BOX, cwd=str(place), sandbox="full-access") as environment:
        assert execute(environment, f"touch {file} && rm {file}")["returncode"] == 0


def test_what_cannot_be_run_is_an_answer(environment: ExecserverEnvironment) -> None:
    done = execute(environment, "true", cwd="/no/such/folder")
    assert done["returncode"] == -1
    assert done["exception_info"].startswith("An error occurred while executing the command: ")


def test_an_environment_that_was_cleaned_up_says_so(environment: ExecserverEnvironment) -> None:
    environment.cleanup()
    environment.cleanup()
    assert "cleaned up" in execute(environment, "true")["exception_info"]


def test_only_a_first_line_of_a_command_that_worked_submits(environment: ExecserverEnvironment) -> None:
    word = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    assert execute(environment, f"echo a; echo {word}")["returncode"] == 0
    assert execute(environment, f"echo {word}; false")["returncode"] == 1
    with pytest.raises(Submitted):
        execute(environment, f"echo; echo {word}")


def test_an_environment_that_is_dropped_disconnects(place: Path) -> None:
    environment = ExecserverEnvironment(box=BOX, cwd=str(place))
    box = environment._commands._box
    del environment
    gc.collect()
    deadline = time.monotonic() + 20
    while str(box.state).rpartition(".")[2] != "ENDED" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert str(box.state).rpartition(".")[2] == "ENDED"


def test_several_threads_have_environments_at_once(place: Path) -> None:
    outputs: list[str] = []

    def work(number: int) -> None:
        with ExecserverEnvironment(box=BOX, cwd=str(place)) as environment:
            outputs.append(execute(environment, f"echo {number}")["output"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs) == sorted(f"{number}\n" for number in range(8))


@pytest.mark.parametrize("settings", [{"sandbox": "none"}, {"max_output_bytes": 0}, {"boxes": "x"}])
def test_settings_that_are_none_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ExecserverEnvironment(box=BOX, **settings)
