"""`execserver sync --watch`: every change follows, over lost connections, until ^C."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from execserver.box.transfer.following import _rounds
from execserver.box.transfer.local_watch import LocalWatch
from execserver.box.transfer.report import Report
from execserver.box.transfer.syncing import Manner, Sync
from execserver.client import ExecServerClient
from tests.box.boxes import WAIT_S, Person, cut_way
from tests.box.test_cp import listing
from tests.client.conftest import the_hub_settles as the_hub_settles
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A source with something in it, and a target."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "d").mkdir(parents=True)
    (source / "d" / "first").write_text("first")
    return source, target


@contextmanager
def watching(person: Person, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a sync that watches; at the end ^C must end it."""
    process = person.start("sync", "--watch", *words)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, err) == (130, b""), out
    finally:
        process.kill()
        process.communicate()


def same(source: Path, target: Path) -> bool:
    try:
        return target.exists() and listing(source) == listing(target)
    except FileNotFoundError:
        return False  # one of them changes meanwhile


def wait_for_the_same(source: Path, target: Path) -> None:
    wait_until(lambda: same(source, target), WAIT_S)


@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_changes_follow_until_it_is_interrupted(
    server: ServerProcess, person: Person, trees: tuple[Path, Path], up: bool
) -> None:
    source, target = trees
    with cut_way(server) as way:
        person.environ["EXECSERVER_BOX"] = way.url
        sides = (str(source), f":{target}") if up else (f":{source}", str(target))
        with watching(person, "--delete", *sides):
            wait_for_the_same(source, target)
            (source / "new" / "deep").mkdir(parents=True)
            (source / "new" / "deep" / "file").write_text("new")
            wait_for_the_same(source, target)
            (source / "new" / "deep" / "file").write_text("changed since")
            (source / "d").rename(source / "e")
            (source / "d").symlink_to("e")
            wait_for_the_same(source, target)
            way.cut()
            (source / "e" / "first").unlink()
            (source / "e").rmdir()
            (source / "e").write_text("a file now")
            wait_for_the_same(source, target)


class Script:
    """A watch that tells what a test wants, and then ends."""

    def __init__(self, *steps: object) -> None:
        self._steps = list(steps)

    def wait(self, seconds: float | None = None) -> bool | None:
        """Do the next step, for the first wait of a round."""
        if seconds is not None:
            return None
        if not self._steps:
            raise KeyboardInterrupt
        step = self._steps.pop(0)
        return bool(step() if callable(step) else step)

    def close(self) -> None:
        """Nothing is held."""


def rounds(server: ServerProcess, trees: tuple[Path, Path], script: Script) -> None:
    source, target = (os.fsencode(path) for path in trees)
    with ExecServerClient.connect(server.url) as client:
        report = Report("source", lines=True, dry=False, quiet=True)
        with pytest.raises(KeyboardInterrupt):
            _rounds(Sync(client, source, target, report, Manner(delete=True), up=True), script)


def test_lost_events_lead_to_a_whole_compare(server: ServerProcess, trees: tuple[Path, Path]) -> None:
    source, target = trees
    other = target / "d" / "first"
    seen: list[bool] = []

    def spoil() -> bool:
        seen.append(same(source, target))
        other.unlink()
        return False

    def lose() -> bool:
        seen.append(same(source, target))
        return True

    rounds(server, trees, Script(spoil, lose))
    assert seen == [True, False]
    assert same(source, target)


def test_an_emptied_source_is_told_and_waited_for(
    server: ServerProcess, trees: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = trees

    def empty() -> bool:
        (source / "d" / "first").unlink()
        (source / "d").rmdir()
        return False

    def fill() -> bool:
        assert (target / "d" / "first").exists()
        (source / "new").touch()
        return False

    rounds(server, trees, Script(empty, fill))
    assert "the source is empty" in capfd.readouterr().err
    assert same(source, target)


def test_what_is_watched_is_just_the_folders_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    watch = LocalWatch(os.fsencode(tmp_path))
    try:
        assert watch.cover([b"", b"a", b"link", b"gone"])
        assert not watch.cover([b"", b"a"])
        (tmp_path / "a" / "file").touch()
        assert watch.wait(WAIT_S) is False
        assert not watch.cover([b""])
        while watch.wait(0.0) is not None:
            pass
        (tmp_path / "a" / "other").touch()
        assert watch.wait(0.0) is None
    finally:
        watch.close()
