"""From a BOX, as a person or a program writes it, to where that is and with what to go there.  No connection.

A BOX is a URL or a name of the boxes file; none at all is the one that EXECSERVER_BOX names, else a private
server.  Tokens come from the caller, the boxes file or the environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from execserver.box import address
from execserver.box.address import BadBox, Own, Relay, Server
from execserver.box.shown import shown

if TYPE_CHECKING:
    from execserver.box.book import Entry

BOX_VARIABLE: Final = "EXECSERVER_BOX"
TOKEN_VARIABLE: Final = "EXECSERVER_TOKEN"
TOKEN_CURE: Final = f"give a token that counts there, with --token-file, {TOKEN_VARIABLE} or the boxes file"

RELAY_WANTS_TOKEN: Final = "a relay asks for a token"


class Box(NamedTuple):
    """Where to connect, and with what."""

    name: str
    where: address.Address
    token: str | None = None
    token_file: str | None = None
    ca_file: str | None = None

    @property
    def is_private(self) -> bool:
        """True for a server that is started for the moment on this machine."""
        return isinstance(self.where, Own)

    @property
    def can_resume(self) -> bool:
        """True if a lost connection can be made again: a server over pipes ends with them."""
        return isinstance(self.where, Server | Relay)


def of_text(text: str | None, environ: Mapping[str, str], own_command: Sequence[str]) -> Box:
    """Return what a BOX means, without a token of the environment; None: the default one.

    `own_command` starts the private server.  Raises BadBox, also for a boxes file
    that cannot be used.
    """
    if text == "":  # a variable that is not set: what was meant for a box must not happen here
        raise BadBox("the box is empty", "name a box; leave the word out for the default one, or none")
    given = text if text is not None else environ.get(BOX_VARIABLE, "")
    if not given:
        return Box("this machine", Own((*own_command, "--listen", "stdio")))
    return _named(given, environ) if address.is_name(given) else Box(given, address.parse(given))


def of_entry(entry: Entry) -> Box:
    """Return the box of an entry.  Raises BadBox."""
    return Box(entry.name, address.parse(entry.url), entry.token, entry.token_file, entry.ca_file)


def with_token(
    box: Box, token: str | None, token_file: str | None, environ: Mapping[str, str], cure: str = TOKEN_CURE
) -> Box:
    """Return the box with the token that the caller gives, else its own, else that of the environment.

    Raises BadBox, with the cure, for a relay without any.
    """
    if token is not None or token_file is not None:
        return box._replace(token=token, token_file=token_file)
    if box.token is None and box.token_file is None:
        box = box._replace(token=environ.get(TOKEN_VARIABLE) or None)
        if box.token is None and isinstance(box.where, Relay):
            raise BadBox(f"{shown(box.name, 200)}: {RELAY_WANTS_TOKEN}", cure)
    return box


def _named(name: str, environ: Mapping[str, str]) -> Box:
    from execserver.box import book  # late: most boxes are URLs, or none

    try:
        path = book.default_path(environ)
        entry = book.entries(path).get(name)
    except book.BookError as error:
        raise BadBox(str(error), error.cure) from None
    if entry is None:
        cure = f"execserver box add {name} URL, where URL is {address.FORMS}"
        if name in address.SCHEMES:
            cure = "give the whole URL, before a path as --box URL :PATH, or a name: `execserver box add`"
        raise BadBox(f"there is no box {name!r} in {path}", cure)
    return of_entry(entry)
