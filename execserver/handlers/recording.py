"""`process/start` with `record`: loaded with the first request that has one."""

from __future__ import annotations

from collections.abc import Callable

from execserver.handlers.context import Call
from execserver.protocol.errors import InvalidParams
from execserver.protocol.process import ExecParams, RecordedStreams
from execserver.services.reporting.observers import Who
from execserver.services.running.process import Process


def started(call: Call, params: ExecParams, start: Callable[[], Process]) -> Process:
    """Have a process started and recorded.

    Raises InvalidParams where nothing can be recorded, InternalError where that is required and fails.
    """
    audit = call.services.audit
    if audit is None:
        raise InvalidParams("this server records nothing; its operator can have it do so with --audit")
    if call.services.survives_crash:
        raise InvalidParams("a recording does not survive a crash, so --survive-crash has none")
    call.session.processes.check_free(params.process_id)
    recording = audit.begin_recording(
        Who(call.session_id, call.session.identity), params.process_id, params.argv
    )
    try:
        process = start()
    except BaseException:  # a greenlet that is killed, too
        if recording is not None:
            recording.discard()
        raise
    if recording is not None:
        process.record_to(recording, with_input=params.record is RecordedStreams.ALL)
    return process
