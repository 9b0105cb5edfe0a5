"""Which boxes answer, how fast, and which sandbox works there.

All are asked side by side, 16 at a time, each for at most 10 s; what does not answer by then is called
unreachable.  What a box says about itself is shown escaped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import gevent
from gevent.pool import Pool

from execserver.box.address import BadBox
from execserver.box.connecting import connect, cure_for
from execserver.box.shown import shown
from execserver.box.target import TOKEN_CURE, of_entry
from execserver.client.errors import ExecServerError, WaitTimeout
from execserver.client.options import ExecServerClientConnectOptions

if TYPE_CHECKING:
    from execserver.box.book import Entry

_LIMIT_S: Final = 10.0
_AT_ONCE: Final = 16
_LARGEST: Final = 1024 * 1024
_HEAD: Final = ("NAME", "ANSWERS", "SANDBOX", "VERSION", "URL")
# Nobody is asked for a password by a list.
_SSH_OPTIONS: Final = ("-oBatchMode=yes", f"-oConnectTimeout={int(_LIMIT_S)}")
# The token of the environment is for one box, and a list would show it to all.
_TOKEN_CURE: Final = (
    "a list uses the tokens of the boxes file only: `execserver box add NAME URL --token-file FILE`"
)


@dataclass(frozen=True)
class State:
    """What was found out about one box; `answer_ms` is the time of one request once connected."""

    name: str
    url: str
    connect_ms: float | None = None
    answer_ms: float | None = None
    version: str | None = None
    sandbox: str | None = None
    error: str | None = None
    cure: str = ""


def ask(entries: Sequence[Entry]) -> list[State]:
    """Return the state of each box, in their order."""
    return list(Pool(_AT_ONCE).imap(_ask, entries))


def _ask(entry: Entry) -> State:
    try:
        with gevent.Timeout(_LIMIT_S, WaitTimeout(f"no answer within {_LIMIT_S:g} s")):
            return _asked(entry)
    except BadBox as error:
        return State(entry.name, entry.url, error=shown(str(error), 300), cure=error.cure)
    except ExecServerError as error:
        cure = cure_for(of_entry(entry), error)
        cure = _TOKEN_CURE if cure == TOKEN_CURE else cure
        return State(entry.name, entry.url, error=shown(str(error), 300), cure=cure)


def _asked(entry: Entry) -> State:
    options = ExecServerClientConnectOptions(
        client_name="execserver", resume_window=0.0, max_message_bytes=_LARGEST
    )
    begun = time.monotonic()
    client = connect(of_entry(entry), options, _SSH_OPTIONS)
    try:
        connected = time.monotonic()
        info = client.environment_info()
        answered = time.monotonic()
        own = info.execserver
        sandbox = None
        if own is not None and own.environment_sandbox:
            policies = client.environment_sandbox().policies
            sandbox = (
                next((each.back_end for each in policies if each.name == "workspace-write"), None) or "none"
            )
        version = None if own is None else own.version
    finally:
        client.close()
    return State(
        entry.name,
        entry.url,
        round((connected - begun) * 1000, 1),
        round((answered - connected) * 1000, 1),
        None if version is None else shown(version, 40),
        None if sandbox is None else shown(sandbox, 40),
    )


def as_json(states: Sequence[State]) -> str:
    """Return the states as one JSON array."""
    return json.dumps([asdict(state) for state in states], indent=1) + "\n"


def as_table(states: Sequence[State]) -> str:
    """Return the states as aligned columns."""
    rows = [_HEAD, *(_row(state) for state in states)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    for state in states:
        if state.error is not None:
            lines.append(f"{state.name}: {state.error}")
        if state.cure:
            lines.append(f"  What to do: {state.cure}")
    return "\n".join([*lines, ""])


def _row(state: State) -> tuple[str, ...]:
    answers = "no" if state.answer_ms is None else f"{state.answer_ms:.1f} ms"
    return (state.name, answers, state.sandbox or "-", state.version or "-", shown(state.url, 100))
