"""From what a person calls a box to the box, and the names of the package."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import execserver_client
from execserver_client import InvalidBox, InvalidUrl, NotFoundError, RequestFailed, connect
from tests.sdk.boxes import running
from tests.sdk.support import run_async
from tests.support.source import ROOT


@pytest.fixture(autouse=True)
def no_box_of_the_person(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EXECSERVER_BOX", "EXECSERVER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EXECSERVER_BOXES", str(tmp_path / "boxes.toml"))


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The server of this checkout as a program."""
    path = tmp_path / "execserver"
    words = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "execserver")
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o700)
    monkeypatch.setenv("EXECSERVER_PROGRAM", str(path))
    return path


def test_a_url_is_awaited_or_used_in_a_block(url: str) -> None:
    async def main() -> None:
        async with connect(url) as box:
            assert (await box.run(["echo", "x"])).text == "x\n"
        box = await connect(url)
        try:
            assert (await box.run(["echo", "y"])).text == "y\n"
        finally:
            await box.aclose()

    run_async(main())


def test_without_a_box_a_private_server_runs_where_one_is_and_ends_with_it(program: Path) -> None:
    async def main() -> None:
        async with connect() as box:
            assert (await box.run(["pwd", "-P"])).text.strip() == os.path.realpath(os.getcwd())

    run_async(main())


def test_a_name_of_the_boxes_file_and_the_default_box_are_found(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "boxes.toml").write_text(f'[boxes.dev]\nurl = "{url}"\n')
    (tmp_path / "boxes.toml").chmod(0o600)

    async def main(name: str | None) -> None:
        async with connect(name) as box:
            assert (await box.run(["echo", "x"])).text == "x\n"

    run_async(main("dev"))
    monkeypatch.setenv("EXECSERVER_BOX", "dev")
    run_async(main(None))


@pytest.mark.parametrize(
    "wrong", ["no-such-name", "ftp://x", "ssh:-oProxyCommand=x", "ws://u:p@h", "unix:rel"]
)
def test_what_leads_nowhere_says_so_with_a_cure(wrong: str) -> None:
    async def main() -> None:
        with pytest.raises(InvalidUrl) as error:
            await connect(wrong)
        assert error.value.hint

    run_async(main())


def test_no_program_for_a_private_server_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EXECSERVER_PROGRAM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    async def main() -> None:
        with pytest.raises(InvalidBox, match="no program execserver"):
            await connect()

    run_async(main())


def test_a_kept_session_is_resumed_by_its_name_and_by_its_id(url: str) -> None:
    async def main() -> None:
        first = await connect(url, name="sdk-nightly", keep=60)
        await first.start(["sleep", "60"], process_id="nap")
        await first.detach()
        for resume in ("sdk-nightly", first.session_id):
            box = await connect(url, resume=resume)
            assert (box.session_id, await running(box)) == (first.session_id, [("sleep", "60")])
            await box.detach()
        async with connect(url, resume="sdk-nightly") as box:
            assert await (await box.attach("nap")).terminate()
            await box.call("session/keep", {"keepMs": 0})
        with pytest.raises((NotFoundError, RequestFailed)):
            await connect(url, resume="sdk-unknown")

    run_async(main())


def test_the_example_of_the_package_works(program: Path) -> None:
    text = str(execserver_client.__doc__)
    example = re.search(r"((?:    .*\n|\n)+)", text[text.index("    import asyncio") :])
    assert example is not None
    code = re.sub(r"^    ", "", example[1], flags=re.MULTILINE)
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "EXECSERVER_PROGRAM": str(program)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=variables, capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "stdout b'one\\n'" in done.stdout
    assert "exit code 0" in done.stdout


class TestNames:
    def test_every_public_name_is_there(self) -> None:
        for name in execserver_client.__all__:
            assert getattr(execserver_client, name) is not None
        assert dir(execserver_client) == sorted(execserver_client.__all__)

    def test_what_is_not_there_is_told(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'no_such'"):
            _ = execserver_client.no_such

    def test_importing_the_package_loads_nothing_else(self) -> None:
        code = (
            "import sys; import execserver_client; print(len([n for n in sys.modules if 'execserver' in n]))"
        )
        variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"}
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, timeout=50)
        assert done.stdout == b"1\n"


@pytest.mark.parametrize("keep", [-1, float("nan"), float("inf")])
def test_a_keep_that_is_no_time_is_refused(keep: float) -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        connect("ws://127.0.0.1:1", keep=keep)


def test_a_token_comes_from_one_place() -> None:
    with pytest.raises(ValueError, match="not both"):
        connect("ws://127.0.0.1:1", token="a", token_file="b")
