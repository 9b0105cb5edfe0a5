"""What has to be watched to learn that a missing path is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.files.missing import MAX_DIRECTORIES, MAX_MISSING, Places, Unwatchable


def below(folder: Path, *names: str) -> list[bytes]:
    return [os.fsencode(folder / name) for name in names]


def test_a_path_hangs_on_one_name_in_each_directory_on_the_way(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (folder / "a").mkdir()
    found = Places(below(folder, "a/b/c", "a/d", "e"), None).directories
    assert found[os.fsencode(folder / "a")] == {b"b", b"d"}
    assert found[os.fsencode(folder)] == {b"a", b"e"}
    assert os.path.basename(os.fsencode(folder)) in found[os.fsencode(folder.parent)]
    assert len(found[b"/"]) == 1


def test_what_exists_cannot_be_missing_and_what_is_missing_not_present(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (folder / "f").touch()
    (folder / "dangling").symlink_to("nowhere")
    for missing, present in (
        (below(folder, "f"), None),
        (below(folder, "dangling"), None),
        (below(folder, "f/x"), None),
        (below(folder, "m"), below(folder, "n")[0]),
        ([b"/"], None),
        ([], None),
        (below(folder, *(f"n{number}" for number in range(MAX_MISSING + 1))), None),
    ):
        with pytest.raises(Unwatchable):
            Places(missing, present)
    Places(below(folder, "m"), below(folder, "f")[0])


def test_a_symlink_on_the_way_is_not_watched(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    with pytest.raises(Unwatchable):
        Places(below(folder, "link/m"), None)
    with pytest.raises(Unwatchable):
        Places(below(folder, "m"), below(folder, "link")[0])


def test_the_number_of_directories_is_limited(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    deepest = [folder / f"tree{number}" / "/".join("d" * 40) for number in range(MAX_DIRECTORIES // 40 + 1)]
    for path in deepest:
        path.mkdir(parents=True)
    Places([os.fsencode(deepest[0] / "m")], None)
    with pytest.raises(Unwatchable):
        Places([os.fsencode(path / "m") for path in deepest], None)
