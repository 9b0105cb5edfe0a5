"""Output of a remote process that is taken where it arrives: nothing is lost, doubled or out of order."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from execserver.client import Closed, Output, RemoteProcess
from execserver.client.greenlets.flow import Gate
from execserver.client.greenlets.session import Session


@given(
    order=st.permutations(range(1, 9)),
    left=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    again=st.lists(st.integers(1, 8), max_size=3),
)
def test_whoever_takes_the_output_gets_the_same(order: list[int], left: list[int], again: list[int]) -> None:
    """What is taken at once and what is taken later are together what comes without the first way."""
    events = [Output(seq, "pty", b"%03d" % seq) for seq in (*order, *again)]
    assert _taken(events, left) == _taken(events, None) == b"001002003004005006007008"


def _taken(events: list[Output], left: list[int] | None) -> bytes:
    """Return the output in the order in which it is taken; of some a part is left at first."""
    process = RemoteProcess(cast(Session, None), Gate(1 << 20, 1 << 20), "p", sandboxed=False)
    taken: list[bytes] = []

    def take(output: Output) -> Output | None:
        keep = (left or [])[output.seq - 1]
        here = len(output.data) - keep
        taken.append(output.data[:here])
        return Output(output.seq, output.stream, output.data[here:]) if keep else None

    for event in events:
        process.take_at_once(take if left is not None and process.last_seq % 3 else None)
        process.deliver(event)
        if event.seq == 4:  # somebody takes what waits, in between
            process.deliver(Output(0, "pty", b"old"))
            while process._known.can_take:
                taken.append(cast(Output, process.next_event()).data)
    process.deliver(Closed(9))
    taken.extend(found.data for found in process if isinstance(found, Output))
    return b"".join(taken)
