"""The boxes of the console: those of the boxes file, and the one of the command line.

At most 300 at a time.  All that have no connection are asked side by side; what comes of it counts for 5 s,
so that many pages ask no more often than one.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from gevent.lock import Semaphore
from gevent.pool import Pool

from execserver.box import book, survey
from execserver.box.address import BadBox, is_name
from execserver.box.book import Entry
from execserver.box.commands.running import home_of
from execserver.box.connecting import Box
from execserver.box.target import of_entry
from execserver.box.web.failing import NOT_FOUND, CallFailed
from execserver.box.web.link import Link, Tell
from execserver.box.web.paths import text_of

if TYPE_CHECKING:
    from execserver.box.survey import State

_FRESH_S: Final = 5.0


class _Known(NamedTuple):
    """A box, and the URL that is shown for it."""

    box: Box
    url: str


class Boxes:
    """Owns the links."""

    def __init__(self, default: Box, tell: Tell) -> None:
        self.default = default
        self._tell = tell
        self._links: dict[str, Link] = {}
        self._asking = Semaphore()
        self._states: dict[str, State] = {}
        self._asked_at = -_FRESH_S
        self.book_error: str | None = None  # why the boxes file is not used

    def link(self, name: str) -> Link:
        """Return the link to a box.  Raises CallFailed for a name that is none."""
        found = self._links.get(name)
        if found is None:
            known = self._known().get(name)
            if known is None:
                raise CallFailed(f"there is no box {name}", NOT_FOUND, "execserver box add NAME URL")
            found = self._links[name] = Link(known.box, self._tell)
        return found

    def links(self) -> list[Link]:
        """Return the links that were used."""
        return list(self._links.values())

    def listed(self) -> list[dict[str, object]]:
        """Return what a page shows of each box; blocks for 10 s at most, for one that does not answer."""
        known = self._known()
        with self._asking:
            if time.monotonic() - self._asked_at > _FRESH_S:
                self._ask(known)
                self._asked_at = time.monotonic()
        return [self._members(each) for each in known.values()]

    def close(self) -> None:
        """End every connection."""
        Pool(len(self._links) or 1).map(Link.close, self.links())

    def _known(self) -> dict[str, _Known]:
        own = self.default
        url = "" if own.is_private or is_name(own.name) else own.name
        found = {own.name: _Known(own, url)}
        try:
            for entry in book.entries(book.default_path(os.environ)).values():
                box = own if entry.name == own.name else of_entry(entry)
                found[entry.name] = _Known(box, entry.url)
        except (book.BookError, BadBox) as error:
            self.book_error = str(error)
        return found

    def _ask(self, known: dict[str, _Known]) -> None:
        """Ask those without a connection; a private server is started when it is used, not before."""
        asked = [
            Entry(name, each.url, each.box.token, each.box.token_file, each.box.ca_file)
            for name, each in known.items()
            if not each.box.is_private and not self._is_connected(name)
        ]
        self._states = {state.name: state for state in survey.ask(asked)}

    def _is_connected(self, name: str) -> bool:
        link = self._links.get(name)
        return link is not None and link.is_connected

    def _members(self, known: _Known) -> dict[str, object]:
        box = known.box
        members: dict[str, object] = {
            "name": box.name,
            "url": known.url,
            "default": box == self.default,
            "state": "reachable" if box.is_private else "unreachable",
            "latency_ms": None,
            "version": None,
            "sandbox": None,
            "error": None,
            "home": None,
        }
        link = self._links.get(box.name)
        try:
            if link is not None and link.is_connected:
                took = link.answer_ms()
                with link.using() as client:
                    home = text_of(home_of(client, box))
                return members | {
                    "state": "connected",
                    "latency_ms": took,
                    "version": link.version,
                    "sandbox": link.sandbox,
                    "home": home,
                }
        except CallFailed as failed:
            return members | {"error": str(failed)}
        state = self._states.get(box.name)
        if state is None:
            return members
        return members | {
            "state": "reachable" if state.error is None else "unreachable",
            "latency_ms": state.answer_ms,
            "version": state.version,
            "sandbox": state.sandbox,
            "error": state.error,
        }
