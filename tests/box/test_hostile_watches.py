"""`sync --watch` from a box that means ill: nothing outside, and an end where the box has ended the watch."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from execserver.box.transfer import following
from tests.box.liar import EVIL, Asked
from tests.box.lying_trees import TOP, Json, box, entry, page, said
from tests.box.test_hostile_box import ESCAPED, Visit
from tests.box.test_hostile_box import run as run

KIND = {"isDirectory": True, "isFile": False, "isSymlink": False}
FOLDER = {**KIND, "size": 0, "createdAtMs": 0, "modifiedAtMs": 0}
ROUNDS = 8


def introduce(asked: Asked) -> None:
    """Answer as a server that watches folders, whose home is the root."""
    shell = {"name": "sh", "path": "/bin/sh"}
    info = {"shell": shell, "execserver": {"fsMany": True, "fsWatch": True}}
    asked.result({"sessionId": "s", "environmentInfo": info})


class Turning:
    """A tree that is another one at each look; the box ends the watch then, and says nothing more of it."""

    def __init__(self, *pages: Json) -> None:
        self._pages = itertools.cycle(pages)
        self._looks = 0
        self._watch_id = ""

    def watch(self, asked: Asked) -> None:
        """Answer `fs/watch`."""
        self._watch_id = asked.params["watchId"]
        error = {"path": "file:///x/%1B", "message": EVIL * 10_000}
        asked.result({"watchId": self._watch_id, "folders": 2**63, "local": True, "errors": [error]})

    def list(self, asked: Asked) -> None:
        """Answer `fs/list`, and tell that something has changed."""
        asked.result(next(self._pages))
        self._looks += 1
        what = {"changes": [], "errors": [], "overflow": self._looks % 3 == 0, "reason": EVIL}
        ended = self._looks == ROUNDS
        asked.push("fs/changes", watchId=self._watch_id, seq=self._looks, ended=ended, **what)


def test_what_is_a_link_and_then_a_folder_leads_nowhere_else(
    run: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_END_S", 0.1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (outside / "kept").chmod(0o600)
    one = [entry(b"l", "symlink", target=os.fsencode(outside)), entry(b"d", "directory"), entry(b"d/x")]
    one += [entry(b"kept", "symlink", target=os.fsencode(outside / "kept"))]
    two = [entry(b"l", "directory", mode=0o777), entry(b"l/kept"), entry(b"l/new")]
    two += [entry(b"d", "symlink", target=os.fsencode(outside)), entry(b"d/kept"), entry(b"kept", mode=0o777)]
    turning = Turning(page(TOP, *one), page(TOP, *two))
    answers = {"fs_list": turning.list, "fs_watch": turning.watch}
    with box(initialize=introduce, fs_getMetadata=said(FOLDER), **answers) as liar:
        status, _, err = run(liar, "sync", "--watch", ":x", "back")
    assert (status, f"Error: the source is watched no more: {ESCAPED}" in err) == (1, True), err
    assert os.listdir(outside) == ["kept"]
    assert ((outside / "kept").read_text(), (outside / "kept").stat().st_mode & 0o777) == ("kept", 0o600)
