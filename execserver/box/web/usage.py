"""CPU time and memory of processes over time: a box is asked every 2 s while a page follows it, once for all.

CPU is the share of one processor between two answers of the box, by the times at which they came.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import gevent

from execserver.box.web.failing import CallFailed
from execserver.box.web.processes import all_of

if TYPE_CHECKING:
    from execserver.box.web.browser import Browser
    from execserver.box.web.link import Link
    from execserver.protocol.watching import SessionProcess

EVERY_S: Final = 2.0
_LONGEST_WORD: Final = 1000
_MOST_WORDS: Final = 64


class Meter:
    """The share of a processor that each process of one box uses.  No I/O; times are in seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        self._percent: dict[str, float] = {}

    def read(self, cpu_ms: dict[str, int], now: float) -> dict[str, float]:
        """Note the CPU milliseconds of all processes; return percent by process id, none for a new one.

        What was found less than half a second ago still counts.
        """
        found = {}
        for process_id, used in cpu_ms.items():
            before = self._seen.get(process_id)
            if before is None or now - before[0] >= EVERY_S / 4:
                self._seen[process_id] = (now, used)
                if before is not None:
                    share = max(0, used - before[1]) / (now - before[0]) / 10
                    self._percent[process_id] = round(share, 1)
            if process_id in self._percent:
                found[process_id] = self._percent[process_id]
        for gone in self._seen.keys() - cpu_ms.keys():
            del self._seen[gone]
            self._percent.pop(gone, None)
        return found


class Usage:
    """Owns the greenlets that ask."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}
        self._followers: dict[str, set[Browser]] = {}
        self._askers: dict[str, gevent.Greenlet[[Link], None]] = {}

    def listed(self, link: Link) -> list[dict[str, object]]:
        """Return the processes of a box."""
        with link.using() as client:
            found = all_of(client)
            own = client.session_id
        percent = self._read(link, found)
        return [self._members(link, each, percent.get(each.process_id), own) for each in found]

    def follow(self, link: Link, browser: Browser, on: bool) -> dict[str, object]:
        """Send usage to a browser, or no more."""
        followers = self._followers.setdefault(link.box.name, set())
        (followers.add if on else followers.discard)(browser)
        if followers and link.box.name not in self._askers:
            self._askers[link.box.name] = gevent.spawn(self._ask, link)
        return {}

    def forget(self, browser: Browser) -> None:
        """Note that a browser is gone."""
        for followers in self._followers.values():
            followers.discard(browser)

    def close(self) -> None:
        """Ask no more."""
        gevent.killall(list(self._askers.values()))

    def _ask(self, link: Link) -> None:
        followers = self._followers[link.box.name]
        try:
            while followers:
                self._tell(link, followers)
                gevent.sleep(EVERY_S)
        finally:
            self._askers.pop(link.box.name, None)

    def _tell(self, link: Link, followers: set[Browser]) -> None:
        if not link.is_connected:
            return  # a call connects again, this does not
        try:
            with link.using() as client:
                found = all_of(client)
        except CallFailed:
            return  # the next answer counts
        percent = self._read(link, found)
        processes = [
            {
                "process_id": each.process_id,
                "cpu_percent": percent.get(each.process_id),
                "memory_bytes": each.rss_bytes,
            }
            for each in found
            if each.running
        ]
        at = int(time.time() * 1000)
        for browser in list(followers):
            browser.tell("usage", again=True, box=link.box.name, at=at, processes=processes)

    def _read(self, link: Link, found: tuple[SessionProcess, ...]) -> dict[str, float]:
        meter = self._meters.setdefault(link.box.name, Meter())
        used = {each.process_id: each.cpu_time_ms for each in found if each.cpu_time_ms is not None}
        return meter.read(used, time.monotonic())

    def _members(
        self, link: Link, process: SessionProcess, percent: float | None, own: str
    ) -> dict[str, object]:
        terminal = link.terminals.get(process.process_id)
        return {
            "session": process.session_name or process.session_id,
            "process_id": process.process_id,
            "name": process.process_name,
            "argv": [word[:_LONGEST_WORD] for word in process.argv[:_MOST_WORDS]],
            "state": "running" if process.running else "exited",
            "exit_code": process.exit_code,
            "started": process.started_at_ms,
            "tty": process.tty,
            "own": process.session_id == own,
            "writer": None if terminal is None else terminal.process.writer,
            "cpu_percent": percent,
            "memory_bytes": process.rss_bytes,
            "watchers": process.watchers,
        }
