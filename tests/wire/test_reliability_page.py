"""docs/reliability.md has the numbers of the code."""

from __future__ import annotations

from execserver.client.relay import course as relay_course
from execserver.client.relay import losses
from execserver.wire import reliability, virtual_stream
from execserver.wire.relay_frames import RESET_CLOSED, RESET_EXECUTOR_LOST, RESET_HARNESS_LOST
from execserver.wire.relay_offer import MEMBER
from tests.support.source import ROOT

PAGE = " ".join((ROOT / "docs" / "reliability.md").read_text().split())
MIB = 1024 * 1024


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    said = [
        f"{reliability.WINDOW_RECORDS:,}, or {reliability.WINDOW_BYTES // MIB} MiB: further",
        f"{virtual_stream.MAX_QUEUED_BYTES // MIB} MiB; the stream ends",
        f"after {reliability.ACK_RECORDS} records or {reliability.ACK_DELAY_S * 1000:g} ms",
        f"after {reliability.PROBE_S * 1000:g} ms, then after 1, 2, {reliability.MAX_PROBE_S:g}, 4",
        f"ends after {reliability.SILENCE_S:g} s",
        f"`heartbeat` after {reliability.IDLE_S:g} s; so a vanished peer is noticed after 50 s",
        f"nothing was heard for {relay_course.DOUBT_S:g} s",
        f"every {losses.FIRST_PAUSE_S * 1000:g} ms at first and every {losses.LONGEST_PAUSE_S:g} s at last",
    ]
    assert [text for text in said if text not in PAGE] == []
    assert reliability.IDLE_S + reliability.SILENCE_S == 50


def test_the_names_of_the_page_are_those_of_the_code() -> None:
    names = [f'"{MEMBER}": 1', f"`{RESET_CLOSED}`", f"`{RESET_HARNESS_LOST}`", f"`{RESET_EXECUTOR_LOST}`"]
    assert [name for name in names if name not in PAGE] == []
