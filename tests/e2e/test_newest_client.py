"""What the newest client asked its own server about skills and plugins, asked of ours.

The files are made from the recorded answers; of the conversations only these requests are kept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.folders import plain_place
from tests.support.newest import environment_in, lines_of
from tests.support.peer import Json
from tests.support.server_process import OURS, ServerProcess, base_environment


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder whose path is the same in the URIs of the traffic."""
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        (Path(folder) / "executor-home").mkdir()
        yield Path(folder).resolve()


def make_files(answer: Json) -> None:
    """Make the files that an answer tells of: those with their contents, and skills by what they say."""
    if isinstance(answer, list):
        for each in answer:
            make_files(each)
    elif isinstance(answer, dict):
        if "contents" in answer:
            write(answer["path"], answer["contents"])
        elif "description" in answer:
            name = answer["name"].rpartition(":")[2]
            write(answer["path"], f"---\nname: {name}\ndescription: {answer['description']}\n---\n")
        for each in answer.values():
            make_files(each)


def write(uri: str, text: str) -> None:
    """Write a file, with its folder."""
    path = Path(uri.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("name", ["41-client-capability-v2", "46-client-capability-roots-v1"])
def test_the_newest_clients_searches_are_answered_as_recorded(name: str, root: Path) -> None:
    asked: dict[str, Any]
    _, asked, answered = (line["msg"] for line in lines_of(name, root))
    make_files(answered["result"])
    home = root / "executor-home"
    env = base_environment() | environment_in(root) | {"HOME": str(home), "CODEX_HOME": str(home / ".codex")}
    with ServerProcess(OURS, listen="stdio", env=env, cwd=root) as server:
        with server.stdio() as peer:
            peer.open_session(client_name="codex-environment")
            assert peer.call(asked["method"], asked["params"]) == answered["result"]
        server.close_stdin()
        server.wait()
