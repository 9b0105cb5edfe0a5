"""What the audit log tells of a piece of an archive is what is unpacked from it."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.core.tar_chunk import BLOCK, names_in
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.paths import PathUri
from execserver.protocol.trees import ExtractPosition, FsExtractParams
from execserver.services.extracting import Extraction

_KINDS = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"Z"]
_ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["a", "d/b", "../x", "/abs", "l" * 300, "\udcff", "a b\n"]),
        st.sampled_from(_KINDS),
        st.integers(0, 3000),
    ),
    max_size=8,
)


class Anything:
    """Files that can do whatever is asked, and do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: b"/root" if name == "canonicalize" else self

    def __getitem__(self, at: int) -> Any:
        return self


class Noted(Extraction):
    """Notes the names of the entries that it makes."""

    def __init__(self, params: FsExtractParams) -> None:
        anything: Any = Anything()
        super().__init__(anything, anything, params)
        self.made: list[bytes] = []

    def _make(self, info: tarfile.TarInfo, name: bytes, begun: ExtractPosition) -> None:
        self.made.append(name)
        super()._make(info, name, begun)


def archive(entries: list[tuple[str, bytes, int]], form: int) -> bytes:
    """Return an archive with these names, kinds and sizes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form, errors="surrogateescape") as opened:
        for name, kind, size in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "to"
            info.size = size if kind in (tarfile.REGTYPE, b"Z") else 0
            opened.addfile(info, io.BytesIO(b"\1" * info.size))
    return made.getvalue()


@given(_ENTRIES, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]), st.integers(8, 40), st.booleans())
def test_both_see_the_same_entries(
    entries: list[tuple[str, bytes, int]], form: int, blocks: int, damaged: bool
) -> None:
    rest = archive(entries, form)
    if damaged:
        middle = len(rest) // 2 // BLOCK * BLOCK
        rest = rest[:middle] + b"\xee" * BLOCK + rest[middle + BLOCK :]
    position: ExtractPosition | None = None
    while rest:
        chunk = rest[: blocks * BLOCK]
        told = names_in(chunk, position.size - position.offset if position else 0)
        unpacking = Noted(FsExtractParams(path=PathUri.from_native(b"/d"), chunk=chunk, position=position))
        try:
            answer = unpacking.run(b"/d")
        except InvalidRequest:
            assert told == unpacking.made
            return
        assert told == unpacking.made
        if answer.done or not answer.consumed:
            return
        rest, position = rest[answer.consumed :], answer.position


@pytest.mark.parametrize("left", [-1, 0, 1, 512, 513, 10**9])
def test_content_that_comes_first_is_passed_over(left: int) -> None:
    begun = max(0, min(left, 1024))
    chunk = b"\1" * (begun + -begun % BLOCK) + archive([("a", tarfile.REGTYPE, 5)], tarfile.PAX_FORMAT)
    assert names_in(chunk, left) == ([b"a"] if left <= 1024 else [])
