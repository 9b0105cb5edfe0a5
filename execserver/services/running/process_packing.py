"""One process on its way to the program that takes a server's place: all that `Process` holds, and no more.

Loaded when a server is upgraded.  Beside `Process` itself it is the only one that looks into it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from execserver.handover.carrier import Incoming, Outgoing
from execserver.handover.records import PackedProcess
from execserver.protocol.record import encode_json
from execserver.protocol.resource_limits import ProcessEnd, ResourceUsage
from execserver.services.launch.child import Child
from execserver.services.running.process import Process


def pack(process: Process, out: Outgoing, writer: str) -> PackedProcess:
    """Return what `unpacked` makes an equal process of; `writer` is the id of the session that writes."""
    stdin = process.stdin
    records_input = stdin is not None and stdin.recorder is not None
    child, (wording, caps) = process._child, process._templates.pack()
    return PackedProcess(
        process_id=process.process_id,
        name=process.name,
        argv=process.argv,
        pid=process.pid,
        started_at=process.started_at,
        zygote=child.zygote,
        child_id=child.child_id,
        wait_status=child.wait_status,
        survivors=child.survivors,
        is_lost=child.is_lost,
        used=(child.cpu_us, child.peak_bytes),
        sent=sorted(process._sent),
        ending=None if process._end is None else encode_json(process._end),
        input_ended=process.stdin_closed,
        wording=wording,
        caps=caps,
        writer=writer,
        input=None if stdin is None else stdin.pack(out),
        outputs=[(pump.stream, out.keep(pump.fd)) for pump in process._pumps if not pump.ended],
        spool=None if process.spool is None else process.spool.pack(out),
        network=None if process.network is None else process.network.pack(out),
        recording=None if process._recorder is None else process._recorder.pack(out, records_input),
        state=process.state.pack(out.put),
    )


def unpacked(
    packed: PackedProcess,
    incoming: Incoming,
    child: Child,
    new_process: Callable[[Child], Process],
) -> Process:
    """Return the process that was packed, with its child; `begin` lets it go on."""
    child.adopt([(stream, incoming.take(fd)) for stream, fd in packed.outputs])
    process = new_process(child)
    if packed.input is not None:
        process.unpack_input(packed.input, incoming)
    process.process_id, process.name = packed.process_id, packed.name
    process.started_at, process.stdin_closed = packed.started_at, packed.input_ended
    process._sent = frozenset(packed.sent)
    if packed.recording is not None:
        from execserver.services.running.process_recorder import taken_over

        recording, with_input = taken_over(packed.recording, incoming)
        process.record_to(recording, with_input=with_input)
    if packed.ending is not None:
        process._end = msgspec.json.decode(packed.ending, type=tuple[ProcessEnd | None, ResourceUsage])
    return process
