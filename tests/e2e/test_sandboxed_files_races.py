"""Names swapped for links while sandboxed file requests run: nothing outside is read, written or removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.e2e.sandbox_places import Place
from tests.e2e.sandboxed_calls import Files
from tests.support.peer import Json
from tests.support.sandboxes import context, managed, rule, workspace_write
from tests.support.swapper import Swapper

pytestmark = pytest.mark.ours_only("about our guards")

ROUNDS = 2000 if LONG else 50  # each call of each kind of server
SECRET = b"outside"

Act = Callable[[Files, Path], Json]

WALK = {
    "maxDepth": 3,
    "maxDirectories": 100,
    "maxEntries": 1000,
    "followDirectorySymlinks": True,
    "pruneHiddenDirectories": False,
}
CALLS: dict[str, Act] = {
    "readFile": lambda files, folder: files.read(folder / "secret"),
    "open": lambda files, folder: files.read_opened(folder / "secret"),
    "getMetadata": lambda files, folder: files.ask("fs/getMetadata", folder / "secret"),
    "canonicalize": lambda files, folder: files.ask("fs/canonicalize", folder / "secret"),
    "readDirectory": lambda files, folder: files.names(folder),
    "walk": lambda files, folder: files.ask("fs/walk", folder, options=WALK),
    "copy-from": lambda files, folder: files.copy(folder / "secret", files.place.ws / "taken"),
    "copy-tree-from": lambda files, folder: files.copy(folder, files.place.ws / "tree", recursive=True),
    "writeFile": lambda files, folder: files.write(folder / "secret"),
    "open-replace": lambda files, folder: files.write_opened(folder / "secret"),
    "writeFile-new": lambda files, folder: files.write(folder / "new"),
    "createDirectory": lambda files, folder: files.ask("fs/createDirectory", folder / "new" / "deep"),
    "copy-to": lambda files, folder: files.copy(files.place.ws / "f", folder / "new"),
    "copy-tree-to": lambda files, folder: files.copy(files.place.ws / "small", folder, recursive=True),
    "remove": lambda files, folder: files.ask("fs/remove", folder / "secret", recursive=False),
    "remove-tree": lambda files, folder: files.ask("fs/remove", folder / "kept"),
}
READING = (
    "readFile",
    "open",
    "getMetadata",
    "canonicalize",
    "readDirectory",
    "walk",
    "copy-from",
    "copy-tree-from",
)


@pytest.fixture
def outside(place: Place) -> Path:
    """What lies beside the workspace, and the names in it that are swapped."""
    place.make("other/secret", SECRET.decode())
    place.make("other/kept/deep", "kept")
    place.make("ws/sub/inside")
    place.make("ws/small/new2/x")
    (place.ws / "link").symlink_to(place.other)
    place.own()
    return place.other


def described(folder: Path) -> list[tuple[str, bytes]]:
    return sorted(
        (str(path.relative_to(folder)), path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    )


@pytest.mark.parametrize("name", CALLS)
def test_nothing_outside_changes(place: Place, outside: Path, name: str) -> None:
    files = Files(place, workspace_write(place.ws))
    before = described(outside)
    with Swapper(os.fsencode(place.ws / "sub"), os.fsencode(place.ws / "link")):
        for _ in range(ROUNDS):
            CALLS[name](files, place.ws / "sub")
    assert described(outside) == before


@pytest.mark.parametrize("name", READING)
def test_nothing_outside_is_told(place: Place, outside: Path, name: str) -> None:
    narrow = Files(place, context(managed(rule(place.ws, "write")), place.ws))
    with Swapper(os.fsencode(place.ws / "sub"), os.fsencode(place.ws / "link")):
        for _ in range(ROUNDS):
            told = str(CALLS[name](narrow, place.ws / "sub"))
            assert SECRET.decode() not in told
            assert "isFile" not in told
            assert str(outside) not in told
            assert "kept" not in told
    for copied in (place.ws / "taken", place.ws / "tree"):
        if copied.is_symlink():
            continue  # a link may be copied, and leads nowhere inside
        if copied.is_dir():
            assert not {"secret", "kept"} & set(os.listdir(copied))
        else:
            assert not copied.exists() or copied.read_bytes() != SECRET
