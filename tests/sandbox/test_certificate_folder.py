"""The folder of certificates: a private one, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.sandbox.certificate_folder import FolderRefused, opened
from execserver.services.egress.ca_bundle import CaBundle, remove_stale


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "codex" / "proxy"


def bundle_in(folder: Path) -> CaBundle:
    return CaBundle.new(os.fsencode(folder), b"pem")


def test_a_folder_is_made_that_everybody_may_read_and_its_owner_alone_may_write(folder: Path) -> None:
    before = os.umask(0)
    try:
        bundle = bundle_in(folder)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o755, 0o755]
    assert Path(os.fsdecode(bundle.path)).read_bytes() == b"pem"
    bundle.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("leads_to", ["elsewhere", "nowhere"])
def test_nothing_is_written_where_a_symlink_leads(leads_to: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.parent.mkdir()
    folder.symlink_to(tmp_path / leads_to)
    with pytest.raises(FolderRefused, match=f"{folder} is a symlink or no folder; remove it"):
        bundle_in(folder)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


def test_nothing_is_written_through_a_symlink_that_replaces_the_home(folder: Path, tmp_path: Path) -> None:
    """Symlinks to the home were resolved before."""
    (tmp_path / "elsewhere").mkdir()
    folder.parent.symlink_to("elsewhere")
    with pytest.raises(FolderRefused, match=f"{folder.parent} is a symlink or no folder"):
        bundle_in(folder)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write_is_refused(mode: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(FolderRefused, match=f"others may write to {folder}; chmod go-w"):
        bundle_in(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("mode", [0o775, 0o777])
def test_a_home_in_which_others_could_replace_the_folder_is_refused(mode: int, folder: Path) -> None:
    folder.parent.mkdir()
    folder.parent.chmod(mode)
    with pytest.raises(FolderRefused, match=f"others may write to {folder.parent}; chmod go-w"):
        bundle_in(folder)
    assert not folder.exists()


def test_a_sticky_home_is_no_obstacle(folder: Path) -> None:
    folder.parent.mkdir()
    folder.parent.chmod(0o1777)
    bundle_in(folder).close()


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    real = os.geteuid()
    if real == 0:
        os.chown(folder, 65533, -1)
    else:  # what is another's cannot be made
        monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with pytest.raises(FolderRefused, match="belongs to another user"):
        bundle_in(folder)
    assert list(folder.iterdir()) == []


def test_a_file_in_its_place_is_refused(folder: Path) -> None:
    folder.parent.mkdir()
    folder.touch()
    with pytest.raises(FolderRefused, match="is a symlink or no folder"):
        bundle_in(folder)


def test_stale_files_are_removed_in_the_folder_itself_only(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    name = f"ca-bundle-{'0' * 64}.pem"
    (other / name).touch()
    folder.parent.mkdir()
    folder.symlink_to(other)
    remove_stale(os.fsencode(folder))
    assert (other / name).exists()
    folder.unlink()
    folder.mkdir()
    (folder / name).touch()
    (folder / "ca-bundle-link.pem").symlink_to(other / name)
    remove_stale(os.fsencode(folder))
    assert not (folder / name).exists()
    assert (other / name).exists()


def test_an_ended_process_removes_nothing_where_a_symlink_leads(folder: Path, tmp_path: Path) -> None:
    bundle = bundle_in(folder)
    other = tmp_path / "elsewhere"
    folder.rename(other)
    folder.symlink_to(other)
    bundle.close()
    assert len(list(other.iterdir())) == 1


def test_looking_makes_nothing(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        opened(os.fsencode(folder), make=False)
    assert not folder.parent.exists()
