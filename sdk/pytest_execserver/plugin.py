"""The fixtures: private servers of the program `execserver`, each of which ends with its test or with all.

Without the program a test that asks for one fails in its setup and says how to get it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from execserver_client import Box as AsyncBox
from execserver_client import ConnectFailed, InvalidBox
from execserver_client import connect as connect_async
from execserver_client._opening import Opening
from execserver_client.result import Result
from execserver_client.sandbox import Sandbox
from execserver_client.sync import Box, Process, connect

_BOX_VARIABLE = "EXECSERVER_BOX"
_PROGRAM_VARIABLE = "EXECSERVER_PROGRAM"
_POLICY = "workspace-write"  # its name in the report


class SandboxedBox:
    """A private box whose commands may change `workspace` only, and reach no network."""

    def __init__(self, box: Box, workspace: Path) -> None:
        """`box` itself has no limits; what it is told goes past the sandbox."""
        self.box = box
        self.workspace = workspace
        self._sandbox = Sandbox.workspace_write(roots=[str(workspace)], tmp=False)

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> Result:
        """Run a command in the workspace to its end; see `Box.run`."""
        cwd = str(self.workspace)
        return self.box.run(
            argv, input=input, cwd=cwd, env=env, sandbox=self._sandbox, timeout=timeout, check=check
        )

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
        pipe_stdin: bool = False,
    ) -> Process:
        """Start a command in the workspace; see `Box.start`."""
        cwd = str(self.workspace)
        return self.box.start(argv, cwd=cwd, env=env, sandbox=self._sandbox, tty=tty, pipe_stdin=pipe_stdin)


@pytest.fixture
def execbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """A private server for this test; commands run as the one who tests, in the current folder."""
    monkeypatch.delenv(_BOX_VARIABLE, raising=False)  # it names somebody's real box
    with _private("execbox") as box:
        yield box


@pytest.fixture(scope="session")
def execbox_session() -> Iterator[Box]:
    """A private server for all tests of this run, for those that leave nothing behind: it starts once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(_BOX_VARIABLE, raising=False)
        box = _private("execbox_session")
    with box:
        yield box


def _private(fixture: str) -> Box:
    try:
        return connect()
    except InvalidBox as error:
        problem = f"{error} ({error.hint})"
    except ConnectFailed as error:
        problem = f"{error} ({_PROGRAM_VARIABLE} names the program; `pip install execserver` gives one)"
    pytest.fail(f"{fixture}: {problem}", pytrace=False)


@pytest.fixture
def execbox_sandboxed(execbox: Box, tmp_path: Path) -> SandboxedBox:
    """A private server whose commands may change `tmp_path` only; skips, with why, where no sandbox works."""
    report = {each.name: each for each in execbox.sandbox_report().policies}
    found = report[_POLICY]
    if found.back_end is None:
        pytest.skip(f"no sandbox works here: {found.blocker}")
    return SandboxedBox(execbox, tmp_path)


@pytest.fixture
def execbox_async(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Opening[AsyncBox]]:
    """A function for tests with asyncio: `async with execbox_async() as box`, a private server each."""
    monkeypatch.delenv(_BOX_VARIABLE, raising=False)
    return connect_async
