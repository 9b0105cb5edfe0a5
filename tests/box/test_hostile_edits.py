"""`edit` of files of a box that means ill: a clear end, and no name of its own for anything here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from execserver.box import connecting
from execserver.box.files import editing
from tests.box.liar import Answer, Asked, Liar
from tests.box.lying_trees import in_base64, said
from tests.box.test_hostile_box import Visit
from tests.box.test_hostile_box import run as run

FILE = {
    "isDirectory": False,
    "isFile": True,
    "isSymlink": False,
    "size": 4,
    "createdAtMs": 0,
    "modifiedAtMs": 0,
}
ANSWERS: dict[str, Answer] = {
    "fs_getMetadata": said(FILE),
    "fs_getVersion": said({"version": {"modifiedAtNs": 5, "size": 4}, "mode": 0o644}),
    "fs_readFile": said({"dataBase64": in_base64(b"evil")}),
}


def introduce(asked: Asked) -> None:
    """Answer as a server that replaces files, whose home is a file with a name of its choice."""
    shell = {"name": "sh", "path": "/bin/sh"}
    info = {"shell": shell, "userHomeDir": "file:///x/.exrc", "execserver": {"fsChange": True}}
    asked.result({"sessionId": "s", "environmentInfo": info})


def box(**answers: Any) -> Liar:
    """Return a box with a file of 4 bytes under every name; it never answers what is None."""
    every = {**ANSWERS, "initialize": introduce, **answers}
    return Liar(**{name: answer for name, answer in every.items() if answer is not None})


@pytest.fixture
def edited(run: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visit:
    """Edits by an editor that writes `mine`."""
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf mine >"$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    return run


@pytest.mark.parametrize("silent", ["fs_getMetadata", "fs_getVersion", "fs_readFile", "fs_writeFile"])
def test_a_box_that_stops_answering_is_given_up(
    silent: str, edited: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "_ANSWER_S", 0.2)
    monkeypatch.setattr(editing, "PATIENCE_S", 0.3)
    with box(**{silent: None}) as liar:
        status, _, err = edited(liar, "edit", ":f")
    assert status == 255
    assert "within 0." in err
    if silent == "fs_writeFile":
        kept = Path(err.partition("your text is in ")[2].splitlines()[0])
        assert kept.read_text() == "mine"
        assert kept.name == "f"


def test_the_home_of_a_box_is_no_file_to_edit(edited: Visit) -> None:
    with box() as liar:
        status, _, err = edited(liar, "edit", ":~")
    assert (status, err) == (1, "Error: :~ is not the name of a file\n")
