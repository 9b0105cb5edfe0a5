from __future__ import annotations

from types import SimpleNamespace

import msgspec
import simplejson
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol import envelope
from execserver.protocol.http import HttpRequestBodyDeltaNotification
from execserver.protocol.legacy import CommandExecExitedNotification, CommandExecOutputDeltaNotification
from execserver.protocol.process import (
    ExecClosedNotification,
    ExecExitedNotification,
    ExecOutputDeltaNotification,
    ExecOutputStream,
    ProcessOutputChunk,
    ReadResponse,
)
from execserver.protocol.record import encode_record
from execserver.protocol.resource_limits import EndCause, ProcessEnd, ResourceUsage
from execserver.protocol.templates import (
    BodyDeltaTemplates,
    CommandExecTemplates,
    ProcessTemplates,
    end_members,
    read_result,
)
from tests.protocol.strategies import texts

streams = st.sampled_from(["stdout", "stderr", "pty"])
seqs = st.integers(1, 2**64 - 1)
exit_codes = st.integers(-(2**31), 2**31 - 1)
chunks = st.binary(max_size=60)
refusals = st.just("") | texts
End = tuple[ProcessEnd | None, ResourceUsage] | None
ends: st.SearchStrategy[End] = st.none() | st.tuples(
    st.none() | st.builds(ProcessEnd, cause=st.sampled_from(EndCause), value=st.none() | seqs, text=texts),
    st.builds(ResourceUsage, cpu_ms=seqs, peak_bytes=st.none() | seqs, complete=st.booleans()),
)


@given(texts, streams, seqs, chunks)
def test_output_is_written_as_its_record(process_id: str, stream: str, seq: int, data: bytes) -> None:
    record = ExecOutputDeltaNotification(
        process_id=process_id, seq=seq, stream=ExecOutputStream(stream), chunk=data
    )
    message = b"".join(ProcessTemplates(process_id).output(stream, seq, data))
    assert message == envelope.encode_notification("process/output", record)
    assert simplejson.loads(message)["params"]["processId"] == process_id


@given(texts, seqs, exit_codes, st.booleans(), refusals, ends)
def test_exit_and_close_are_written_as_their_records(
    process_id: str, seq: int, exit_code: int, denied: bool, refusal: str, end: End
) -> None:
    templates = ProcessTemplates(process_id)
    exited = ExecExitedNotification(
        process_id=process_id,
        seq=seq,
        exit_code=exit_code,
        sandbox_denied=denied,
        sandbox_refusal=refusal or msgspec.UNSET,
        ended=msgspec.UNSET if end is None else end[0],
        usage=msgspec.UNSET if end is None else end[1],
    )
    message = templates.exited(seq, exit_code, denied, refusal, b"" if end is None else end_members(*end))
    closed = ExecClosedNotification(process_id=process_id, seq=seq)
    assert message == envelope.encode_notification("process/exited", exited)
    assert templates.closed(seq) == envelope.encode_notification("process/closed", closed)


@given(texts, streams, chunks, exit_codes)
def test_the_first_contracts_notifications_are_written_as_their_records(
    process_id: str, stream: str, data: bytes, exit_code: int
) -> None:
    templates = CommandExecTemplates(process_id)
    output = CommandExecOutputDeltaNotification(
        process_id=process_id, stream=ExecOutputStream(stream), chunk=data
    )
    exited = CommandExecExitedNotification(process_id=process_id, exit_code=exit_code)
    encode = envelope.encode_notification
    assert b"".join(templates.output(stream, 1, data)) == encode("command/exec/outputDelta", output)
    assert templates.exited(1, exit_code) == encode("command/exec/exited", exited)
    assert templates.closed(1) == b""


@given(texts, seqs, chunks, st.none() | texts)
def test_body_deltas_are_written_as_their_records(
    request_id: str, seq: int, data: bytes, error: str | None
) -> None:
    templates = BodyDeltaTemplates(request_id)

    def expected(delta: bytes, done: bool, error: str | None) -> bytes:
        record = HttpRequestBodyDeltaNotification(
            request_id=request_id, seq=seq, delta_base64=delta, done=done, error=error
        )
        return envelope.encode_notification("http/request/bodyDelta", record)

    assert b"".join(templates.piece(seq, data)) == expected(data, False, None)
    assert templates.last(seq, error) == expected(b"", True, error)


@given(
    st.lists(st.tuples(seqs, streams, chunks), max_size=4),
    seqs,
    st.none() | exit_codes,
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**40),
    refusals,
    ends,
)
def test_a_read_is_written_as_its_record(
    retained: list[tuple[int, str, bytes]],
    next_seq: int,
    exit_code: int | None,
    closed: bool,
    denied: bool,
    lost: int,
    refusal: str,
    end: End,
) -> None:
    page = SimpleNamespace(chunks=retained, next_seq=next_seq)
    log = SimpleNamespace(oldest_seq=7, lost_bytes=lost)
    state = SimpleNamespace(
        exited=exit_code is not None,
        exit_code=exit_code,
        closed=closed,
        log=log,
        sandbox_denied=denied,
        sandbox_refusal=refusal,
        end_text=b"" if end is None else end_members(*end),
    )
    record = ReadResponse(
        chunks=tuple(
            ProcessOutputChunk(seq=seq, stream=ExecOutputStream(stream), chunk=data)
            for seq, stream, data in retained
        ),
        next_seq=next_seq,
        exited=exit_code is not None,
        exit_code=exit_code,
        closed=closed,
        sandbox_denied=denied,
        oldest_seq=7,
        lost_bytes=lost,
        sandbox_refusal=refusal or msgspec.UNSET,
        ended=msgspec.UNSET if end is None else end[0],
        usage=msgspec.UNSET if end is None else end[1],
    )
    assert bytes(read_result(page, state)) == encode_record(record)
