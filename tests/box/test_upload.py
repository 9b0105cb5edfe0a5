"""How a large file gets to a box: what is told of it on the way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from execserver.box.transfer.comparing import Plan
from execserver.box.transfer.report import Report
from execserver.box.transfer.upload import Upload
from execserver.box.trees.nodes import Kind, Node
from execserver.box.trees.there import BoxTree
from execserver.client import ExecServerClient
from execserver.protocol.batches import FsWriteEntry
from tests.client.conftest import the_hub_settles as the_hub_settles
from tests.support.server_process import ServerProcess

BIG = os.urandom(1024) * 3000  # several pieces


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ExecServerClient]:
    """A client of the box."""
    with ExecServerClient.connect(server.url) as client:
        yield client


class Heard(Report):
    """Notes how many bytes are told to be through, after each time that it is told."""

    def __init__(self) -> None:
        super().__init__("source", lines=False, dry=False, quiet=True)
        self.through = [0]

    def passed(self, size: int) -> None:
        """Note."""
        self.through.append(self.through[-1] + size)


class Losing(BoxTree):
    """A box where somebody removes what was collected of a file, just before more of it comes."""

    def __init__(self, client: ExecServerClient, top: bytes, part: Path) -> None:
        super().__init__(client, top)
        self._lost = part
        self._adds = 0

    def add(self, pieces: Iterable[FsWriteEntry]) -> str:
        """Remove the part behind the claim of what is there, before anything is added."""
        self._adds += 1
        if self._adds == 2:
            self._lost.unlink()
        return super().add(pieces)


@pytest.mark.parametrize("there", [0, 1_000_000], ids=["from the beginning", "resumed"])
def test_the_bytes_of_a_large_file_are_counted_once(
    client: ExecServerClient, tmp_path: Path, there: int
) -> None:
    (tmp_path / "source").write_bytes(BIG)
    (tmp_path / ".target.execserver-part").write_bytes(BIG[:there])
    heard = Heard()
    upload(BoxTree(client, os.fsencode(tmp_path / "target")), tmp_path, heard)
    assert (tmp_path / "target").read_bytes() == BIG
    assert heard.through == sorted(heard.through)
    assert heard.through[1] >= there
    assert heard.through[-1] == len(BIG)


def test_a_file_that_begins_anew_is_not_counted_twice(client: ExecServerClient, tmp_path: Path) -> None:
    part = tmp_path / ".target.execserver-part"
    (tmp_path / "source").write_bytes(BIG)
    part.write_bytes(BIG[:1_000_000])
    heard = Heard()
    upload(Losing(client, os.fsencode(tmp_path / "target"), part), tmp_path, heard)
    assert (tmp_path / "target").read_bytes() == BIG
    assert (heard.through[1], max(heard.through), heard.through[-1]) == (1_000_000, len(BIG), len(BIG))
    assert 0 in heard.through[2:]  # nothing of it is there, and so it is told
    assert heard.failures == 0


def upload(box: BoxTree, folder: Path, report: Report) -> None:
    """Bring the file `source` of a folder to a box, going on with what is there."""
    node = Node(Kind.FILE, len(BIG))
    Upload(os.fsencode(folder / "source"), box, report, resumes=True).apply(
        Plan(files=[b""]), {b"": node}, {}
    )
