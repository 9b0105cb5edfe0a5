"""Replays transcripts of `tests/transcripts/newest` about processes and sandboxes, recorded over stdio.

Their first line names the files that were there; `/ROOT` is a fresh folder with the working directory, the
home and the workspace of the recording. `VARYING` holds what the machine decides of an output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from tests.support.accounts import own_cache
from tests.support.differences import Differences
from tests.support.feed import whole
from tests.support.peer import Json
from tests.support.replay import Replay
from tests.support.scene import Hook, Scene
from tests.support.server_process import OURS, Flavour, ServerProcess, base_environment
from tests.support.stage import Stage
from tests.support.transcript import lines_of

RECORDED_PATH = "/usr/local/bin:/usr/bin:/bin"


def a_listing_of_protected_folders(got: bytes) -> bool:
    """Tell whether `.git` was refused, and `ls -la` shows it and `.agents`."""
    lines = got.decode().splitlines()
    shown = [re.fullmatch(r"dr-xr-xr-x .* (\.\w+)", line) for line in lines[1:]]
    names = sorted(line[1] for line in shown if line)
    return lines[0] == "mkdir: cannot create directory '.git': File exists" and names == [".agents", ".git"]


SAID = b"""alias ll='ls -l'
fn:x
P=p1 R=r1 L=
/bin/bash hBCc
2 /usr/local/bin:/usr/bin:/bin
nullglob       \ton
noclobber      \ton
/bin/bash -pc """


def a_restored_state(got: bytes) -> bool:
    """Tell whether a command found its snapshot; how it is told its state is the server's own affair."""
    return got.startswith(SAID)


def nothing_excluded(got: bytes) -> bool:
    """Tell whether no excluded variable is there; the server's own are not those of the recorder."""
    names = got.decode().split()
    return {"HOME", "PATH", "PWD", "SHLVL", "_"} <= set(names) and not any("FROM_" in name for name in names)


VARYING: dict[str, dict[str, Callable[[bytes], bool]]] = {
    "08": {f"a:p{number}": a_listing_of_protected_folders for number in (1, 2, 3)},
    "22": {"a:p27": nothing_excluded, **{f"a:p{number}": a_restored_state for number in (2, 3, 4)}},
}

MADE_ANEW = {"09": {"a:81": "ws/ln/x"}}
"""Requests before which the recorder made a file again, and that file."""

REWRITTEN = {
    "22": (
        ("home/.bashrc now ends", "home/.bashrc", "+\nexport FROM_RC=r2\n"),
        # It slept for 30 s, and the capture was given up after ten; here it is over at once.
        ("home/.bashrc is now", "home/.bashrc", "case $- in *i*) exit 3;; esac\n"),
    ),
}
"""Notes of the recorder, the file that it wrote there, and its text; `+` stands for what was in it."""


class NewestStage(Stage):
    """One server on stdio in the recorded surroundings."""

    def __init__(self, flavour: Flavour, root: Path) -> None:
        env = (
            base_environment()
            | own_cache()
            | {"HOME": str(root / "home"), "CODEX_HOME": str(root / "home/.codex")}
        )
        env |= {"PATH": RECORDED_PATH, "SHELL": "/bin/bash"}
        env.pop("TMPDIR", None)
        self.server = ServerProcess(flavour, listen="stdio", env=env, cwd=root / "cwd")
        self.others = []
        self.feed = whole
        self.stdio = True


def play_newest(name: str, root: Path, flavour: Flavour = OURS) -> list[str]:
    """Replay a transcript of this name; return the unexplained differences and the unneeded entries."""
    build(root, lines_of(name)[0].other["msg"].get("files", {}))
    number = name.removeprefix("newest/")[:2]
    before = {key: _file_there(root / file) for key, file in MADE_ANEW.get(number, {}).items()}
    scene = Scene({"ROOT": str(root)}, before=before, varying=VARYING.get(number, {}))
    scene.at_note = {note: _written(root / file, text) for note, file, text in REWRITTEN.get(number, ())}
    differences = Differences.none(name) if flavour.is_reference else Differences.of_ours(name)
    stage = NewestStage(flavour, root)
    try:
        failures = Replay(name, stage, scene, differences).run()
    finally:
        stage.close()
    return failures + differences.unused()


def _file_there(path: Path) -> Hook:
    def make(replay: Replay) -> None:
        path.write_text("r")

    return make


def _written(path: Path, text: str) -> Hook:
    def write(replay: Replay) -> None:
        path.write_text(text.replace("+", path.read_text(), 1))

    return write


def build(root: Path, files: dict[str, Json]) -> None:
    """Make the recorded folders, files and links (`-> target`)."""
    for folder in ("cwd", "home/.codex", "ws"):
        (root / folder).mkdir(parents=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = text.replace("/ROOT", os.fspath(root)).replace("/nowhere", os.fspath(root / "nowhere"))
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> "))
        else:
            path.write_text(text)
