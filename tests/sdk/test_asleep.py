"""Clients whose machine sleeps for a minute in the middle of a command's output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.sdk.conformance.places import Direct, Place, Relayed
from tests.sdk.relay_scene import RelayScene
from tests.support.source import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]  # the sleep is a real one
ASLEEP_S = 60.0
LINES = 700
# Its output lasts longer than the sleep.
COUNTING = f"""
import time
for number in range({LINES}):
    print(number, flush=True)
    time.sleep(0.1)
"""
PROGRAM = """
import asyncio, sys
from execserver_client import connect

async def main():
    kept = {"name": "asleep", "keep": 600} if sys.argv[5] == "kept" else {}
    async with connect(sys.argv[1], token=sys.argv[2] or None, **kept) as box:
        async with await box.start([sys.executable, "-c", sys.argv[3]]) as process:
            print("begun", flush=True)
            lines = b"".join([data async for data in process.stdout]).split()
        print(lines == [b"%d" % number for number in range(int(sys.argv[4]))], await process.wait())
        print((await box.run(["echo", "on"])).text)

asyncio.run(main())
"""


@contextmanager
def client(place: Place, *, kept: bool) -> Iterator[subprocess.Popen[str]]:
    """A client that receives output of its command."""
    words = (place.box, place.token or "", COUNTING, str(LINES), "kept" if kept else "")
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def test_a_client_that_slept_for_a_minute_goes_on_or_is_told_why_not() -> None:
    """Behind a relay a silent client is missed, and the box gives its session up unless it is to keep it."""
    with ExitStack() as stack:
        direct = Direct()
        stack.callback(direct.close)
        relayed = Relayed(stack.enter_context(RelayScene()))
        scenes = ((direct, False), (relayed, True), (relayed, False))  # the place, and whether it is kept
        clients = [stack.enter_context(client(place, kept=kept)) for place, kept in scenes]
        for each in clients:
            each.send_signal(signal.SIGSTOP)
        time.sleep(ASLEEP_S)
        for each in clients:
            each.send_signal(signal.SIGCONT)
        *went_on, (said, told) = [each.communicate(timeout=90) for each in clients]
        assert went_on == [("True 0\non\n\n", "")] * 2
        assert (said, "ResumeFailed" in told) == ("", True), told
