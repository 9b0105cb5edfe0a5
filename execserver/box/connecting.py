"""From a BOX, as a person types it, to a client: finds the name, the token, and connects.

Without any box a private server is started, which ends with the client.  Tokens come from a file, the
environment or the boxes file, never from the command line, where others see it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import gevent

from execserver.box import address
from execserver.box.address import BadBox, Own, Relay, Server, Ssh
from execserver.box.shown import shown
from execserver.client.client import ExecServerClient
from execserver.client.errors import (
    ConnectFailed,
    ExecServerError,
    InvalidUrl,
    RegistryRefused,
    RequestFailed,
    WaitTimeout,
)
from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from execserver.leaving import Leave

if TYPE_CHECKING:
    from execserver.box.book import Entry

BOX_VARIABLE: Final = "EXECSERVER_BOX"
TOKEN_VARIABLE: Final = "EXECSERVER_TOKEN"
UNREACHABLE: Final = 255
"""The exit status when a box cannot be reached or used, as ssh has it: few commands return it."""
_ANSWER_S: Final = 60.0  # what is asked for here takes a box some milliseconds
_SSH_CONNECT_TIMEOUT_S: Final = 120.0  # a person may have to type a passphrase
_TOKEN_CURE: Final = f"give a token that counts there, with --token-file, {TOKEN_VARIABLE} or the boxes file"
_SSH_GRACE_S: Final = 2.0  # ssh complains when it is interrupted
_MAX_TOKEN_BYTES: Final = 16 * 1024


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


def unreachable(text: str, cure: str = "") -> Leave:
    """Return the Leave for a box that cannot be reached or used."""
    advice = f"\n  What to do: {cure}" if cure else ""
    return Leave(UNREACHABLE, stderr=f"Error: {text}{advice}\n")


def find(box: str | None, token_file: str | None, own_command: Sequence[str]) -> Box:
    """Return what a BOX means; None: the default one, else a server by `own_command`.  Raises Leave."""
    given = box if box is not None else os.environ.get(BOX_VARIABLE, "")
    if not given:
        return Box("this machine", Own((*own_command, "--listen", "stdio")))
    try:
        found = _named(given) if address.is_name(given) else Box(given, address.parse(given))
    except BadBox as error:
        raise unreachable(shown(str(error)), error.cure) from None
    return _with_token(found, token_file)


def of_entry(entry: Entry) -> Box:
    """Return the box of an entry.  Raises BadBox."""
    return Box(entry.name, address.parse(entry.url), entry.token, entry.token_file, entry.ca_file)


def _named(name: str) -> Box:
    from execserver.box import book

    try:
        path = book.default_path(os.environ)
        entry = book.entries(path).get(name)
    except book.BookError as error:
        raise unreachable(shown(str(error)), error.cure) from None
    if entry is None:
        raise BadBox(
            f"there is no box {name!r} in {path}",
            f"execserver box add {name} URL, where URL is {address.FORMS}",
        )
    return of_entry(entry)


def _with_token(box: Box, token_file: str | None) -> Box:
    if token_file is not None:
        return box._replace(token=None, token_file=token_file)
    if box.token is None and box.token_file is None:
        box = box._replace(token=os.environ.get(TOKEN_VARIABLE) or None)
        if box.token is None and isinstance(box.where, Relay):
            raise unreachable(f"{shown(box.name, 200)}: a relay asks for a token", _TOKEN_CURE)
    return box


def connect(
    box: Box, options: ExecServerClientConnectOptions, ssh_options: Sequence[str] = ()
) -> ExecServerClient:
    """Connect.  Raises what the Python client raises; `reaching` turns it into words."""
    # How gevent shows what a failed greenlet was about: its own choice loads `pprint`, which takes 5 ms.
    gevent.config.format_context = "builtins.repr"
    options = options.replace(ca_file=box.ca_file)
    match box.where:
        case Own():
            return ExecServerClient.connect_stdio(box.where.command, options)
        case Ssh():
            return _by_ssh(box.where, options, ssh_options)
        case Relay():
            return _through_relay(box, box.where, options)
        case Server():
            options = options.replace(token=box.token, token_file=box.token_file)
            return ExecServerClient.connect(box.where.url, options)


def _by_ssh(
    where: Ssh, options: ExecServerClientConnectOptions, ssh_options: Sequence[str]
) -> ExecServerClient:
    from execserver.box.foreground import Foreground

    waiting = options.replace(initialize_timeout=max(options.initialize_timeout, _SSH_CONNECT_TIMEOUT_S))
    with Foreground() as foreground:
        return ExecServerClient.connect_stdio(
            where.command(*ssh_options),
            waiting if not ssh_options else options,
            on_start=foreground.lend,
            grace=_SSH_GRACE_S,
        )


def _through_relay(box: Box, where: Relay, options: ExecServerClientConnectOptions) -> ExecServerClient:
    token = box.token if box.token is not None else _token_in(box.token_file)
    return ExecServerClient.connect_remote(
        RemoteExecServerConnectArgs(
            url=where.url, environment_id=where.environment_id, token=token, options=options
        )
    )


def _token_in(path: str | None) -> str:
    if path is None:
        raise InvalidUrl("a relay asks for a token")
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ConnectFailed(f"cannot read the token file {path}: {error.strerror}") from None
    text = data.decode("ascii", "replace").strip()
    if len(data) > _MAX_TOKEN_BYTES or not text.isascii() or not text.isprintable() or not text:
        raise InvalidUrl(f"the token file {path} holds no token")
    return text


@contextmanager
def reaching(box: Box) -> Iterator[None]:
    """Turn an error of the Python client into a Leave that says what to do."""
    try:
        yield
    except ExecServerError as error:
        raise unreachable(
            f"{shown(box.name, 200)}: {shown(str(error), 1000)}", cure_for(box, error)
        ) from None


def patience(limit_s: float | None = None) -> gevent.Timeout:
    """Return a limit for a box that is connected and does not answer, a minute; it raises WaitTimeout."""
    limit_s = _ANSWER_S if limit_s is None else limit_s
    return gevent.Timeout(
        limit_s, WaitTimeout(f"the box is connected, but did not answer within {limit_s:g} s")
    )


@contextmanager
def asking(box: Box) -> Iterator[None]:
    """Do as `reaching`, for requests that a box answers at once: after a minute it is given up."""
    with reaching(box), patience():
        yield


def cure_for(box: Box, error: ExecServerError) -> str:
    """Return what a person can do about an error on the way to a box; empty if nothing is known."""
    text = str(error)
    if isinstance(error, RegistryRefused) or "status 401" in text or "status 403" in text:
        return _TOKEN_CURE
    if isinstance(error, ConnectFailed) and isinstance(box.where, Server):
        return "start `execserver --listen URL` there, and look at the URL and the network in between"
    if isinstance(box.where, Ssh) and not isinstance(error, RequestFailed):
        return f"look at what ssh printed; `ssh {box.where.host} {box.where.program} --version` must work"
    return ""
