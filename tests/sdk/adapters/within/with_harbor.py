"""Harbor on a box: whole trials with its oracle and an agent of ours, and what the environment promises."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.models.trial.config import EnvironmentConfig as TrialEnvironmentConfig
from harbor.models.trial.paths import TrialPaths
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from execserver_adapters.harbor import CommandTimedOut, ExecserverEnvironment
from tests.sdk.adapters.page import run_snippet, snippet

BOX = os.environ["EXECSERVER_TEST_BOX"]
IMPORT_PATH = "execserver_adapters.harbor:ExecserverEnvironment"
IS_ROOT = os.geteuid() == 0

TASK = """
schema_version = "1.0"
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 60
[environment]
docker_image = "taken-as-it-is"
workdir = "/app"
[environment.env]
OF_THE_TASK = "yes"
"""
TEST_SH = """#!/bin/bash
if grep -qx "hello yes" /app/hello.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLVE_SH = """#!/bin/bash
echo "hello $OF_THE_TASK" > /app/hello.txt
"""


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "hello"
    for name, text in (
        ("task.toml", TASK),
        ("instruction.md", "Write hello."),
        ("environment/given.txt", "given"),
        ("tests/test.sh", TEST_SH),
        ("solution/solve.sh", SOLVE_SH),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


class ScriptedAgent(BaseAgent):
    """An agent that knows what to do; its commands go the way of any agent's."""

    @staticmethod
    def name() -> str:
        return "scripted"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        await environment.exec("echo set up > /logs/agent/setup.txt")

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        given = await environment.exec("cat given.txt; pwd")
        assert given.stdout == "given/app\n", given
        await environment.exec('echo "hello $OF_THE_TASK" > hello.txt')


async def trial(task: Path, place: Path, agent: AgentConfig, **kwargs: Any) -> TrialResult:
    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=place / "trials",
        agent=agent,
        environment=TrialEnvironmentConfig(import_path=IMPORT_PATH, kwargs={"box": BOX, **kwargs}),
    )
    return await (await Trial.create(config)).run()


def rewards(result: TrialResult) -> object:
    assert result.exception_info is None, result.exception_info
    assert result.verifier_result is not None
    return result.verifier_result.rewards


def test_the_snippet_runs_a_trial_on_the_box(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # its results lie in `trials` below the folder of the moment
    names = asyncio.run(run_snippet(snippet("Harbor", BOX, str(task))))
    assert rewards(names["result"]) == {"reward": 1.0}


@pytest.mark.parametrize("sandbox", ["full-access", "workspace-write"])
def test_the_oracle_solves_a_task_in_a_whole_trial(task: Path, tmp_path: Path, sandbox: str) -> None:
    async def work() -> None:
        found = rewards(await trial(task, tmp_path, AgentConfig(name="oracle"), sandbox=sandbox))
        assert found == {"reward": 1.0}

    run(work())


def test_an_agent_that_does_nothing_gets_nothing(task: Path, tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path) as environment:
            await environment.exec("rm -f hello.txt")
        assert rewards(await trial(task, tmp_path, AgentConfig(name="nop"))) == {"reward": 0.0}

    run(work())


def test_a_scripted_agent_solves_it_and_its_logs_come_back(task: Path, tmp_path: Path) -> None:
    async def work() -> None:
        agent = AgentConfig(import_path=f"{__name__}:ScriptedAgent")
        assert rewards(await trial(task, tmp_path, agent)) == {"reward": 1.0}
        (log,) = (tmp_path / "trials").glob("*/agent/setup.txt")
        assert log.read_text() == "set up\n"

    run(work())


@asynccontextmanager
async def started(place: Path, **settings: Any) -> AsyncIterator[ExecserverEnvironment]:
    (place / "environment").mkdir(exist_ok=True)
    environment = ExecserverEnvironment(
        environment_dir=place / "environment",
        environment_name="name",
        session_id="session",
        trial_paths=TrialPaths(trial_dir=place / "trial"),
        task_env_config=EnvironmentConfig(workdir="/app"),
        logger=logging.getLogger("test"),
        **{"box": BOX, **settings},
    )
    await environment.start(force_build=False)
    try:
        yield environment
    finally:
        await environment.stop(delete=True)


def test_a_command_has_its_folder_its_variables_and_its_exit_code(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path, persistent_env={"A": "1"}) as environment:
            done = await environment.exec("pwd; echo $A$B; echo e >&2; exit 7", env={"B": "2"})
            assert (done.stdout, done.stderr, done.return_code) == ("/app\n12\n", "e\n", 7)
            assert (await environment.exec("pwd", cwd="/usr")).stdout == "/usr\n"

    run(work())


def test_a_time_limit_is_the_error_that_harbor_knows(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path) as environment:
            with pytest.raises(CommandTimedOut, match="1 seconds") as caught:
                await environment.exec("sleep 60", timeout_sec=1)
            assert isinstance(caught.value, RuntimeError)
            assert (await environment.exec("true")).return_code == 0

    run(work())


def test_output_comes_while_the_command_runs(tmp_path: Path) -> None:
    async def work() -> None:
        told: list[tuple[str, str]] = []

        async def take(text: str, stream: str) -> None:
            told.append((text, stream))
            if text == "one\n":
                await environment.upload_file(tmp_path / "go", "/app/go")

        (tmp_path / "go").write_text("")
        async with started(tmp_path) as environment:
            await environment.exec("rm -f go")
            with environment.scoped_output_callback(take):
                waiting = "until test -e go; do sleep 0.01; done"
                await environment.exec(f"echo one; {waiting}; echo é >&2", timeout_sec=30)
        assert told == [("one\n", "stdout"), ("é\n", "stderr")]

    run(work())


def test_files_and_folders_go_there_and_back(tmp_path: Path) -> None:
    async def work() -> None:
        source = tmp_path / "source"
        (source / "deep").mkdir(parents=True)
        (source / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (source / "deep" / "run.sh").chmod(0o755)
        (source / "link").symlink_to("deep/run.sh")
        async with started(tmp_path) as environment:
            await environment.upload_dir(source, "/app/new/tree")
            assert (await environment.exec("/app/new/tree/link")).stdout == "ran\n"
            await environment.download_dir("/app/new/tree", tmp_path / "a" / "back")
            await environment.download_file("/app/new/tree/deep/run.sh", tmp_path / "b" / "one.sh")
            assert await environment.is_dir("/app/new")
            assert not await environment.is_file("/app/new")
            with pytest.raises(FileNotFoundError, match="nothing"):
                await environment.download_file("/app/nothing", tmp_path / "c")
            await environment.download_dir_with_exclusions(
                source_dir="/app/new/tree", target_dir=tmp_path / "d", exclude=["link"]
            )
        assert (tmp_path / "a/back/link").readlink() == Path("deep/run.sh")
        assert os.access(tmp_path / "a/back/deep/run.sh", os.X_OK)
        assert (tmp_path / "b/one.sh").read_text() == "#!/bin/sh\necho ran\n"
        assert sorted(os.listdir(tmp_path / "d")) == ["deep"]

    run(work())


def test_the_network_can_be_shut_between_two_commands(tmp_path: Path) -> None:
    async def work() -> None:
        count = "wc -l < /proc/net/route"
        async with started(tmp_path, sandbox="workspace-write") as environment:
            names = "ls /sys/class/net; cat /proc/self/net/dev | tail -n +3 | wc -l"
            before = (await environment.exec(f"{names}; {count}")).stdout
            await environment.set_network_policy(NetworkPolicy(network_mode=NetworkMode.NO_NETWORK))
            tried = "exec 3<>/dev/tcp/127.0.0.1/" + BOX.rpartition(":")[2].rstrip("/")
            assert (await environment.exec(tried)).return_code != 0, before
            await environment.set_network_policy(NetworkPolicy(network_mode=NetworkMode.PUBLIC))
            assert (await environment.exec(tried)).return_code == 0

    run(work())


def test_what_cannot_be_enforced_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(ValueError, match="no-network"):
            async with started(tmp_path, network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)):
                pass
        with pytest.raises(ValueError, match="no sandbox"):
            async with started(tmp_path, sandbox="none"):
                pass

    run(work())


def test_a_box_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXECSERVER_BOX", raising=False)

    async def work() -> None:
        with pytest.raises(ValueError, match="name the box"):
            async with started(tmp_path, box=None):
                pass

    run(work())


def test_each_task_can_have_a_box_of_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        port = BOX.rpartition(":")[2]
        async with started(tmp_path, box=BOX.replace(port, "{environment_name}")) as environment:
            assert environment is None, "there is no such port"

    with pytest.raises(Exception, match="name"):
        run(work())


@pytest.mark.skipif(not IS_ROOT, reason="only a server of root can become another user")
def test_a_command_runs_as_another_user(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path) as environment:
            assert (await environment.exec("id -un", user="daemon", cwd="/")).stdout == "daemon\n"
            assert (await environment.exec("id -u", user=0)).stdout == "0\n"
            with environment.with_default_user("daemon"):
                assert (await environment.exec("id -u", cwd="/")).stdout == "1\n"
            with pytest.raises(ValueError, match="no-such-user"):
                await environment.exec("true", user="no-such-user")

    run(work())
