"""A start as bytes for a process that waits for one: it arrives as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.resources.rlimits import ChildLimits
from execserver.sandbox.plan import HIDDEN_DIRECTORY, HIDDEN_FILE, LINK, PASSAGE, READ, WRITE, Mount
from execserver.zygote.confine.handed_start import handed, start_in
from execserver.zygote.confinement import BUBBLEWRAP, LANDLOCK, NATIVE, Confinement
from execserver.zygote.records import SpawnRequest

NUMBERS = st.integers(0, 2**63 - 1)
TEXT = st.binary(max_size=40)
CONFINEMENTS = st.builds(Confinement, st.sampled_from([NATIVE, BUBBLEWRAP, LANDLOCK]), TEXT, TEXT)
LIMITS = st.builds(ChildLimits, *[st.integers(-1, 2**62)] * 3, st.booleans())
REQUESTS = st.builds(
    SpawnRequest,
    *(NUMBERS, st.lists(TEXT, min_size=1, max_size=4), st.lists(TEXT, max_size=4), TEXT),
    *(st.none() | TEXT, TEXT, st.booleans(), NUMBERS, CONFINEMENTS, TEXT, st.booleans(), LIMITS),
)
KINDS = st.sampled_from([READ, WRITE, HIDDEN_DIRECTORY, PASSAGE, HIDDEN_FILE, LINK])
COVERS = st.lists(
    st.builds(Mount, KINDS, TEXT, TEXT, st.none() | st.tuples(NUMBERS, NUMBERS, NUMBERS)), max_size=3
)


@given(REQUESTS, COVERS)
def test_a_start_arrives_as_it_was(request: SpawnRequest, covers: list[Mount]) -> None:
    arrived, mounts = start_in(handed(request, covers))
    assert (arrived, mounts) == (request, covers)
    # Whoever gets it compares and joins these.
    assert (type(arrived.confinement), type(arrived.limits)) == (Confinement, ChildLimits)


def test_it_begins_with_a_free_id() -> None:
    # The channel copies the first sixteen bytes of what travels in a memfd.
    one, other = (handed(SpawnRequest(number, [b"x"], [], b"/"), []) for number in (1, 2))
    assert one[:16] == other[:16] == bytes(16)


@pytest.mark.parametrize("size", [0, 1_000_000])
def test_its_size_does_not_matter(size: int) -> None:
    request = SpawnRequest(7, [b"x" * size], [b"A=" + b"y" * size], b"/")
    assert start_in(handed(request, [])) == (request, [])
