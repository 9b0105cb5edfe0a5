"""What the notes of the transcripts in `tests/transcripts/newest` mean, and what they leave out."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path

from tests.support.newest import Act, Course
from tests.support.peer import Json


def create(name: str) -> Act:
    """Make an empty file."""
    return lambda root: (root / name).touch()


def make(name: str) -> Act:
    """Make a directory."""
    return lambda root: (root / name).mkdir()


def write(name: str, text: str) -> Act:
    """Write a file, with its folder."""

    def act(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")

    return act


def remove(name: str) -> Act:
    """Remove a file."""
    return lambda root: (root / name).unlink()


def remove_tree(name: str) -> Act:
    """Remove a directory with what is in it."""
    return lambda root: shutil.rmtree(root / name)


def move(name: str, to: str) -> Act:
    """Rename a file or a directory."""
    return lambda root: (root / name).rename(root / to)


def both(*acts: Act) -> Act:
    """Do one after the other."""

    def act(root: Path) -> None:
        for each in acts:
            each(root)

    return act


def _folders_of_watches(root: Path) -> None:
    (root / "ws/f").mkdir()
    (root / "ws/k/l").mkdir(parents=True)
    (root / "ws/other").touch()


def _fifty(root: Path) -> None:
    for number in range(50):
        (root / f"ws/crowd{number}").touch()


def _relink(root: Path) -> None:
    (root / "ws/ln").unlink()
    (root / "ws/ln").symlink_to(root / "cwd")


WATCH = Course(
    native_paths=frozenset({50}),
    before=_folders_of_watches,
    notes={
        "create ws/later": create("ws/later"),
        "remove ws/later": remove("ws/later"),
        "create": create("ws/later"),
        "remove": remove("ws/later"),
        **{f"create {name}": create(f"ws/{name}") for name in ("l1", "l2", "z1", "z2", "y1", "x1")},
        **{f"create {name}": create(f"ws/{name}") for name in ("qq", "un1")},
        **{f"mkdir {name}": make(f"ws/{name}") for name in ("a", "a/b", "g", "g2")},
        "create c": create("ws/a/b/c"),
        "create h": create("ws/g/h"),
        "write there": write("ws/there", "22"),
        "chmod there": lambda root: (root / "ws/there").chmod(0o600),
        "other file in ws": create("ws/beside"),
        "rm there": remove("ws/there"),
        "write in d": write("ws/d/x", "22"),
        "new in d": create("ws/d/y"),
        "rm -r d": remove_tree("ws/d"),
        "rm -r e": remove_tree("ws/e"),
        "mv f f2": move("ws/f", "ws/f2"),
        "mv k k2": move("ws/k", "ws/k2"),
        "create real/miss": create("real/miss"),
        "relink": _relink,
        "dangling link": lambda root: (root / "ws/dl").symlink_to("nowhere"),
        "create cwd/r2": create("cwd/r2"),
        "mv other mv1": move("ws/other", "ws/mv1"),
        "create 50 others": _fifty,
    },
)


def _places_to_open(root: Path) -> None:
    (root / "ws/d").mkdir()
    os.mkfifo(root / "ws/fifo")


def _block(size: int, request_id: int) -> Json:
    chunk = base64.b64encode(b"a" * size).decode()
    return {
        "id": request_id,
        "method": "fs/writeBlock",
        "params": {"handleId": "h", "offset": 0, "chunk": chunk},
    }


BLOCKS = Course(
    before=_places_to_open,
    requests={5: _block(1_048_577, 5), 6: _block(1_048_576, 6)},
    texts={20: "path `/ROOT/ws/fifo` is a FIFO: only files and character devices are written"},
)

LAYERS = Course(
    acts={
        5: write("ws/.codex/config.toml", "model = broken\n"),
        6: write("home/.codex/config.toml", "model = broken\n"),
    },
)

SKILLS = Course(
    notes={
        "added home/.agents/skills/new/SKILL.md": write(
            "home/.agents/skills/new/SKILL.md", "---\nname: new\ndescription: does new\n---\nbody of new\n"
        )
    },
)

COURSES = {
    "01-environmentConfig-read": Course(native_paths=frozenset({24})),
    "02-environmentConfig-layers": LAYERS,
    "03-capabilities-discoverV2-skills": SKILLS,
    "04-capabilities-discoverV2-plugins": Course(),
    "05-capabilityRoots-discoverV1": Course(native_paths=frozenset({16})),
    "06-fs-watchMissing": WATCH,
    "21-fs-followSymlinks": Course(),
    "23-fs-writeBlock-limits": BLOCKS,
}
"""The transcripts that ours and the newest reference server are played."""
