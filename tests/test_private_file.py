"""A private file is replaced as a whole, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from execserver.private_file import replace_with_json


def test_the_file_is_its_users_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text("old")
    path.chmod(0o644)
    replace_with_json(str(path), {"a": [1]})
    assert json.loads(path.read_text()) == {"a": [1]}
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["list"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text("old")
    with pytest.raises(TypeError):
        replace_with_json(str(path), {"a": object()})
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["list"]


@pytest.mark.parametrize("leftover", ["file", "link"])
def test_what_a_killed_process_left_is_replaced_and_not_written_through(
    tmp_path: Path, leftover: str
) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    fresh = tmp_path / "list.new"
    if leftover == "link":
        fresh.symlink_to(other)
    else:
        fresh.write_text("half")
    replace_with_json(str(tmp_path / "list"), [])
    assert other.read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["list", "other"]
