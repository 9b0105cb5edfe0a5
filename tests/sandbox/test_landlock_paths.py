from __future__ import annotations

import os
from pathlib import Path

from execserver.sandbox.kernel.landlock_paths import all_but_devices

LINE = "36 25 0:5 / {path} rw,relatime shared:2 - {kind} {kind} rw\n"


def found(root: Path, *mounts: tuple[str, Path]) -> set[str]:
    table = root / "table"
    text = "".join(LINE.format(kind=kind, path=str(path).replace(" ", r"\040")) for kind, path in mounts)
    table.write_text(text)
    paths = all_but_devices(os.fsencode(root), str(table))
    return {os.path.relpath(os.fsdecode(path), root) for path in paths} - {"table"}


def test_without_devices_everything_in_the_root_is_granted(tmp_path: Path) -> None:
    for name in ("etc", "home"):
        (tmp_path / name / "sub").mkdir(parents=True)
    assert found(tmp_path, ("ext4", tmp_path / "home")) == {"etc", "home"}


def test_folders_on_the_way_to_terminals_are_granted_by_what_is_in_them(tmp_path: Path) -> None:
    terminals = tmp_path / "srv" / "old system" / "dev" / "pts"
    for folder in (
        terminals,
        tmp_path / "srv" / "old system" / "etc",
        tmp_path / "srv-2",
        tmp_path / "nodes",
    ):
        folder.mkdir(parents=True)
    granted = found(tmp_path, ("devpts", terminals), ("devtmpfs", tmp_path / "nodes"))
    assert granted == {"srv/old system/etc", "srv-2"}


def test_the_machines_own_devices_are_never_granted() -> None:
    granted = set(all_but_devices())
    assert b"/usr" in granted
    assert not any(path == b"/dev" or path.startswith(b"/dev/") for path in granted)


def test_what_cannot_be_listed_grants_nothing(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    assert found(tmp_path, ("devpts", hidden / "pts")) == set()
    hidden.write_text("no folder")
    assert found(tmp_path, ("devpts", hidden / "pts")) == set()
