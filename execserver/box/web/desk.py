"""Which browser looks at which terminal, by channel numbers: opened, resized, taken over, closed."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

import gevent

from execserver.box.web.failing import BUSY, NOT_FOUND, CallFailed
from execserver.box.web.processes import MAX_TERMINALS, find, make_room
from execserver.box.web.terminals import Channel, Terminal

if TYPE_CHECKING:
    from execserver.box.web.boxes import Boxes
    from execserver.box.web.browser import Browser
    from execserver.box.web.link import Link
    from execserver.box.web.reading import Params
    from execserver.client.client import ExecServerClient

_LARGEST: Final = 1000  # rows and columns
_LOOK_S: Final = 1.0
_MOST_NUMBERS: Final = 2**24


class Desk:
    """Owns the channels of all browsers."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        self._numbers = count(1)
        self._looking = gevent.spawn(self._look)

    def open(self, link: Link, browser: Browser, params: Params) -> dict[str, object]:
        """Show a process to a browser; what is retained of its output comes first."""
        rows, cols = params.number("rows", 1, _LARGEST), params.number("cols", 1, _LARGEST)
        if len(browser.channels) >= MAX_TERMINALS:
            raise CallFailed(f"{MAX_TERMINALS} terminals are open in this page", BUSY, "close some of them")
        terminal = self._terminal(link, params.text("process_id", 256))
        number = next(self._numbers) % _MOST_NUMBERS
        channel = Channel(number, terminal, browser)
        try:
            if channel.writer:
                self._resize(terminal, rows, cols)
        except BaseException:  # the page has left
            channel.close()
            raise
        # Last: the page learns the number of the channel before anything comes by it.
        browser.channels[number] = channel
        browser.wake()
        return {"channel": number, "writer": channel.writer, "tty": terminal.tty}

    def resize(self, browser: Browser, params: Params) -> dict[str, object]:
        """Change the size of a terminal, if this browser writes to it."""
        channel = _channel(browser, params)
        if channel.writer and channel.terminal.tty:
            rows, cols = params.number("rows", 1, _LARGEST), params.number("cols", 1, _LARGEST)
            self._resize(channel.terminal, rows, cols)
        return {}

    def take(self, browser: Browser, params: Params) -> dict[str, object]:
        """Let a browser write."""
        channel = _channel(browser, params)
        with channel.terminal.link.using():
            channel.terminal.take(channel)
        return {}

    def close(self, browser: Browser, params: Params) -> dict[str, object]:
        """Show it no longer."""
        channel = _channel(browser, params)
        browser.channels.pop(channel.number, None)
        channel.close()
        return {}

    def forget(self, browser: Browser) -> None:
        """Note that a browser is gone."""
        channels = list(browser.channels.values())
        browser.channels.clear()
        for channel in channels:
            channel.close()

    def shut(self) -> None:
        """End every terminal; the processes of the console end with their connections."""
        self._looking.kill()
        for link in self._boxes.links():
            for terminal in list(link.terminals.values()):
                terminal.close()

    def _terminal(self, link: Link, process_id: str) -> Terminal:
        """Return the terminal of a process; one that is not looked at yet is watched from now on."""
        with link.using() as client:
            if (known := link.terminals.get(process_id)) is not None:
                return known
            make_room(link)
            found = find(client, process_id)
            is_own = found.session_id == client.session_id
            # Who follows it already may be writing, which cannot be seen: the keyboard is taken on demand.
            alone = found.watchers == 0 and not is_own and not self._is_attached(client, found.session_id)
            process = client.watch_process(
                found.session_id, process_id, after_seq=0, take=found.running and alone
            )
            if (known := link.terminals.get(process_id)) is not None:  # somebody was faster
                process.unwatch()
                return known
            return Terminal(link, process_id, process, tty=found.tty, own=False)

    @staticmethod
    def _is_attached(client: ExecServerClient, session_id: str) -> bool:
        sessions = client.session_list()
        return any(each.attached for each in sessions if each.session_id == session_id)

    @staticmethod
    def _resize(terminal: Terminal, rows: int, cols: int) -> None:
        if not terminal.tty:
            return
        try:
            with terminal.link.using():
                terminal.process.resize(rows, cols)
        except CallFailed:
            pass  # it has ended, somebody else writes, or this server cannot: the page goes on

    def _look(self) -> None:
        while True:
            gevent.sleep(_LOOK_S)
            for link in self._boxes.links():
                for terminal in list(link.terminals.values()):
                    terminal.look_at_writer()


def _channel(browser: Browser, params: Params) -> Channel:
    found = browser.channels.get(params.number("channel", 0, _MOST_NUMBERS))
    if found is None:
        raise CallFailed("there is no such channel any more", NOT_FOUND)
    return found
