"""The console: its parts put together, and its life from the first line to ^C.

Everything ends with it: browsers are told, connections to boxes are closed, and with them what runs there in
their sessions.  Kept processes go on.
"""

from __future__ import annotations

import os
import secrets
import signal
from typing import TYPE_CHECKING, Any, Final, cast

import gevent
from gevent.event import AsyncResult
from gevent.hub import get_hub

from execserver.box.connecting import reaching
from execserver.box.interrupts import not_ignored
from execserver.box.web import pages
from execserver.box.web.answers import page, upgrade
from execserver.box.web.boxes import Boxes
from execserver.box.web.browser import Browser
from execserver.box.web.calls import carry_out
from execserver.box.web.desk import Desk
from execserver.box.web.forwards import Forwards
from execserver.box.web.gate import NOT_FOUND, Gate, Refused
from execserver.box.web.listener import WEB_SOCKETS, Arrived, Listener
from execserver.box.web.opening import Opened, command_for
from execserver.box.web.transfers import transfer
from execserver.box.web.usage import Usage
from execserver.eventloop.deadline import at_most
from execserver.leaving import failure, reason, write

if TYPE_CHECKING:
    from execserver.box.connecting import Box

_SECRET_BYTES: Final = 16
_BY_SIGNAL: Final = 128
_END_S: Final = 5.0


class Console:
    """Owns all parts between `run` and its return."""

    def __init__(self, box: Box, port: int) -> None:
        """Bind the port, 0 for a free one.  Raises Leave."""
        try:
            self._listener = Listener(port)
        except OSError as error:
            raise failure(
                f"cannot listen on 127.0.0.1:{port}: {reason(error)}", "choose another port, or none"
            ) from None
        self._gate = Gate(self._listener.port, secrets.token_urlsafe(_SECRET_BYTES))
        self._browsers: set[Browser] = set()
        self.boxes: Boxes = Boxes(box, self._tell_all)
        self.usage: Usage = Usage()
        self.terminals: Desk = Desk(self.boxes)
        self.forwards: Forwards = Forwards()

    def run(self, *, opens: bool) -> int:
        """Serve until a signal; return the exit status.  Raises Leave if the box cannot be reached."""
        end: AsyncResult[int] = AsyncResult()
        watchers = []
        opening: gevent.Greenlet[[str], None] | None = None
        try:
            with reaching(self.boxes.default):
                self.boxes.link(self.boxes.default.name).open(may_ask=True)
            for number in not_ignored((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
                watcher = get_hub().loop.signal(number)
                watcher.start(end.set, _BY_SIGNAL + number)
                watchers.append(watcher)
            self._listener.start(self._gate, self)
            write(1, f"{self._gate.url}\n")
            if not pages.has_terminal():
                write(2, "execserver: this file was built without the terminal (xterm.js)\n")
            if opens:
                opening = gevent.spawn(_open, self._gate.url)
            return cast(int, end.get())
        finally:
            for watcher in watchers:
                watcher.close()
            if opening is not None:
                opening.kill()
            self._close()

    def serve(self, arrived: Arrived) -> None:
        """Answer a request.  Raises Refused, OSError."""
        name = arrived.asked.name
        if name == "ws":
            self._serve_browser(arrived)
        elif name == "files":
            transfer(self.boxes, arrived)
        else:
            body = pages.content(name or "index.html")
            if body is None:
                raise Refused(NOT_FOUND, "not found")
            arrived.sock.sendall(page(name or "index.html", body))

    def _serve_browser(self, arrived: Arrived) -> None:
        answer = upgrade(arrived.request)
        if answer is None:
            raise Refused(400, "this is no WebSocket upgrade")
        if len(self._browsers) >= WEB_SOCKETS:
            raise Refused(503, f"{WEB_SOCKETS} pages are open; close one of them")
        browser = Browser(arrived.sock, self._carry)
        self._browsers.add(browser)
        try:
            browser.run(answer, arrived.rest)
        finally:
            self._browsers.discard(browser)
            self.usage.forget(browser)
            self.terminals.forget(browser)

    def _carry(self, browser: Browser, method: str, params: dict[str, Any]) -> object:
        return carry_out(self, browser, method, params)

    def _tell_all(self, event: str, **members: str) -> None:
        for browser in list(self._browsers):
            browser.tell(event, again=False, **members)

    def _close(self) -> None:
        self._listener.stop()
        for browser in list(self._browsers):
            browser.end()
        self._listener.close()
        self.usage.close()
        self.forwards.shut()
        self.terminals.shut()
        with at_most(_END_S):
            self.boxes.close()


def _open(url: str) -> None:
    command = command_for(os.environ)
    if command is None:
        write(2, "execserver: no browser is found ($BROWSER, xdg-open); open the URL yourself\n")
        return
    try:
        opened = Opened(url)
    except OSError as error:
        write(2, f"execserver: the browser cannot be started: {error.strerror}\n")
        return
    try:
        if not opened.start(command):
            write(2, f"execserver: {command[0]} has failed; open the URL yourself\n")
            return
        gevent.sleep(60)  # a browser that starts slowly still has to read the file
    finally:
        opened.close()
