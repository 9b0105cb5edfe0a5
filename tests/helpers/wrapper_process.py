"""The wrapper as a process, in both languages it is written in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.support.compiled_wrapper import compile_wrapper
from tests.support.source import ROOT
from tests.support.wrapper_peer import LIMIT_S, WrapperPeer, frame

COMMAND = [sys.executable, "-I", "-S", str(ROOT / "execserver" / "__main__.py"), "codex-execve-wrapper"]

NO_ANSWER = "Error: failed to receive EscalateResponse\n\nCaused by:\n    "


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, str]:
    """Return exit status, stdout and stderr of a wrapper."""
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, errors.decode()


def answered(
    command: Sequence[str], answer: object, *argv: str | bytes, env: dict[bytes, bytes] | None = None
) -> tuple[int, bytes, str]:
    """Return how a wrapper ends that is given this answer, and then nothing more."""
    with WrapperPeer() as peer:
        process = peer.start(command, *argv, env=env)
        session = peer.accept()
        session.stream.sendall(answer if isinstance(answer, bytes) else frame(answer))
        session.close()
        return finish(process)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The wrapper that the one file is."""
    found = compile_wrapper(tmp_path_factory.mktemp("compiled"))
    if found is None:
        pytest.skip("there is no C compiler on this machine")
    return [str(found)]


@pytest.fixture(params=["python", "compiled"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """What starts the wrapper, in both languages it is written in."""
    return COMMAND if request.param == "python" else list(request.getfixturevalue("compiled"))
