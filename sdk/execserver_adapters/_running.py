"""One command to its end, within a limit of time and of output, as the agent frameworks ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from execserver_adapters._kept import Kept
from execserver_client import Box, Closed, ExecEnvPolicy, Exited, Output, OutputGap, Process

# How long output may still come behind the end of a program whose own children hold its pipes.
_SETTLE_S: Final = 0.3


class Outcome(NamedTuple):
    """How a command ended, and what is kept of its output; with `merged` all of it is in `stdout`."""

    exit_code: int
    stdout: Kept
    stderr: Kept
    denied: bool

    @property
    def left_out(self) -> int:
        """The bytes of output that are not kept."""
        return self.stdout.left_out + self.stderr.left_out


async def run_within(
    box: Box,
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    env_policy: ExecEnvPolicy,
    sandbox: Any,
    timeout: float | None,
    limit: int,
    merged: bool = False,
) -> Outcome:
    """Run a command and return how it ended.

    Of each stream the first and the last `limit // 2` bytes are kept; the command goes on.  What it leaves
    running in the background goes on, too, if there is no sandbox.  Raises TimeoutError once the command is
    killed, and what `Box.start` does.
    """
    process = await box.start(argv, cwd=cwd, env=env, env_policy=env_policy, sandbox=sandbox)
    stdout, stderr = Kept(limit // 2, limit // 2), Kept(limit // 2, limit // 2)
    ended = False
    try:
        async with asyncio.timeout(timeout):
            ended_with = await follow(process, stdout, stdout if merged else stderr)
        ended = True
    finally:
        if not ended:
            await asyncio.shield(process.terminate())
    return Outcome(ended_with.code, stdout, stderr, bool(ended_with.sandbox_denied))


async def follow(process: Process, stdout: Kept, stderr: Kept) -> Exited:
    """Collect the output of a process until it has ended, and for a moment what its children still print."""
    exited: Exited | None = None
    while True:
        try:
            event = await asyncio.wait_for(process.next_event(), None if exited is None else _SETTLE_S)
        except OutputGap as gap:
            stdout.lost += gap.lost_bytes or 0
            continue
        except TimeoutError:
            assert exited is not None
            return exited
        match event:
            case Output():
                (stderr if event.stream == "stderr" else stdout).add(event.data)
            case Exited():
                exited = event
            case Closed() | None:
                return exited or Exited(seq=0, code=-1)
