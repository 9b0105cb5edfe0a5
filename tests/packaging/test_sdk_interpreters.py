"""The client's wheel on every version of Python that it claims: installed with pip, and used."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.packaging.test_sdk_wheels import run
from tests.sdk.relay_scene import RelayScene
from tests.support.interpreters import find
from tests.support.programs import write_script
from tests.support.server_process import ServerProcess
from tests.support.source import ROOT
from tools.sdk.packages import CLASSIFIERS, CLIENT, REQUIRES_PYTHON
from tools.sdk.wheels import make

VERSIONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(CLASSIFIERS), re.MULTILINE)

# Warnings are errors in it, and it is played with tasks that begin at once, too, where there are such.
SCENE = """
import asyncio, sys, threading
from execserver_client import CommandTimeout, NotFoundError, connect
from execserver_client.sync import connect as connect_blocking

url, folder, relayed, token = sys.argv[1:]

async def used(box):
    result = await box.run(["sh", "-c", "cat; echo err >&2; exit 3"], input=b"in")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"in", b"err\\n"), result
    async with await box.start(["head", "-c", "3000000", "/dev/zero"]) as process:
        assert sum([len(data) async for data in process.stdout]) == 3_000_000
    runs = await asyncio.gather(*(box.run(["echo", str(number)]) for number in range(50)))
    assert [run.text for run in runs] == [f"{number}\\n" for number in range(50)]
    await box.files.write(f"{folder}/file", b"content" * 100_000)
    assert await box.files.read(f"{folder}/file") == b"content" * 100_000
    try:
        await box.files.read("/no/such/file")
    except NotFoundError as error:
        assert error.code == -32004
    try:
        await box.run(["sleep", "60"], timeout=0.05)
    except CommandTimeout:
        pass
    task = asyncio.create_task(box.run(["sleep", "60"]))
    await asyncio.sleep(0.05)
    task.cancel()
    (end,) = await asyncio.gather(task, return_exceptions=True)
    assert type(end) is asyncio.CancelledError, end
    async with asyncio.timeout(30):
        while any(process.running for process in await box.processes()):
            await asyncio.sleep(0.01)

async def main(box, token=None):
    async with connect(box, token=token) as opened:
        await used(opened)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == [], left

async def eager():
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    await main(url)

asyncio.run(main(url), debug=True)
asyncio.run(main(None))
print("asynchronous")
if hasattr(asyncio, "eager_task_factory"):
    asyncio.run(eager())

with connect_blocking(url) as box:
    assert box.run(["cat"], input=b"in").stdout == b"in"
    with box.start(["seq", "3"]) as process:
        assert b"".join(process.stdout) == b"1\\n2\\n3\\n"
    box.files.write(f"{folder}/file", b"blocking")
    assert box.files.read(f"{folder}/file") == b"blocking"
assert threading.enumerate() == [threading.main_thread()]
print("blocking")

if relayed:
    asyncio.run(main(relayed, token))
    print("relayed")
assert "gevent" not in sys.modules
"""


class Installed(NamedTuple):
    """The interpreter of an environment with the client, and whether it reaches relays."""

    python: Path
    has_relay: bool


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(CLIENT, tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module", params=VERSIONS)
def installed(
    wheel: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    base = find(request.param)
    if base is None:
        pytest.skip(f"no python{request.param} that makes environments, on PATH or of pyenv or uv")
    folder = tmp_path_factory.mktemp(f"python{request.param}")
    run(base, "-I", "-m", "venv", folder)
    python = folder / "bin" / "python3"
    pip = (python, "-I", "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    run(*pip, wheel)
    relay = (*pip, "--only-binary=cryptography", f"{wheel}[relay]")
    done = subprocess.run([*map(str, relay)], capture_output=True, text=True, timeout=120, check=False)
    has_relay = done.returncode == 0
    assert has_relay or "No matching distribution found for cryptography" in done.stderr, done.stderr
    return Installed(python, has_relay)


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.mark.long
def test_an_installed_client_is_used_on_it(
    installed: Installed, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = write_script(tmp_path / "program", f'cd {ROOT} && exec {sys.executable} -m execserver "$@"')
    monkeypatch.setenv("EXECSERVER_PROGRAM", str(program))
    words = (installed.python, "-I", "-W", "error", "-c", SCENE, server.url, tmp_path)
    if not installed.has_relay:
        assert run(*words, "", "") == "asynchronous\nblocking\n"
        return
    with RelayScene() as scene:
        assert run(*words, scene.box, scene.token) == "asynchronous\nblocking\nrelayed\n"


def test_the_oldest_version_that_is_claimed_is_the_oldest_that_is_allowed() -> None:
    assert VERSIONS
    assert f">={VERSIONS[0]}" == REQUIRES_PYTHON
