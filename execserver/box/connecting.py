"""From a BOX, as a person types it, to a client: finds the name, the token, and connects.

Without any box a private server is started, which ends with the client.  Tokens come from a file, the
environment or the boxes file, never from the command line, where others see it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import gevent

from execserver.box import target
from execserver.box.address import BadBox, Own, Relay, Server, Ssh
from execserver.box.shown import shown
from execserver.client.carriers.credentials import token_in
from execserver.client.client import ExecServerClient
from execserver.client.errors import (
    ConnectFailed,
    ExecServerError,
    InvalidUrl,
    RegistryRefused,
    RequestFailed,
    TokenFileUnusable,
    WaitTimeout,
)
from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from execserver.leaving import WRONG_USAGE, Leave

if TYPE_CHECKING:
    from execserver.protocol.process import ExecParams

Box: TypeAlias = target.Box
UNREACHABLE: Final = 255
"""The exit status when a box cannot be reached or used, as ssh has it: few commands return it."""
_ANSWER_S: Final = 60.0  # what is asked for here takes a box some milliseconds
_SSH_CONNECT_TIMEOUT_S: Final = 120.0  # a person may have to type a passphrase
_TOKEN_WANTED: Final = ("status 401", "status 403", target.RELAY_WANTS_TOKEN)
_TRUST_CURE: Final = "trust its certificate: `execserver box add NAME URL --ca-file FILE`, and use that name"
_SSH_GRACE_S: Final = 2.0  # ssh complains when it is interrupted


def unreachable(text: str, cure: str = "") -> Leave:
    """Return the Leave for a box that cannot be reached or used."""
    advice = f"\n  What to do: {cure}" if cure else ""
    return Leave(UNREACHABLE, stderr=f"Error: {text}{advice}\n")


def find(box: str | None, token_file: str | None, own_command: Sequence[str]) -> Box:
    """Return what a BOX means; None: the default one, else a server by `own_command`.  Raises Leave."""
    try:
        found = target.of_text(box, os.environ, own_command)
        if found.is_private:
            return found
        return target.with_token(found, None, token_file, os.environ)
    except BadBox as error:
        raise unreachable(shown(str(error)), error.cure) from None


def connect(
    box: Box,
    options: ExecServerClientConnectOptions,
    ssh_options: Sequence[str] = (),
    ahead: Callable[[], ExecParams] | None = None,
) -> ExecServerClient:
    """Connect.  Raises what the Python client raises; `reaching` turns it into words.

    `ahead` is as for `ExecServerClient.connect`, and left out where that would not help.
    """
    # How gevent shows what a failed greenlet was about: its own choice loads `pprint`, which takes 5 ms.
    gevent.config.format_context = "builtins.repr"
    gevent.config.track_greenlet_tree = False  # costs time at each spawn, and nothing uses it
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
            return ExecServerClient.connect(box.where.url, options, ahead=ahead)


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
    if box.token is None and box.token_file is None:
        raise InvalidUrl(target.RELAY_WANTS_TOKEN)
    token = box.token if box.token is not None else token_in(str(box.token_file))
    return ExecServerClient.connect_remote(
        RemoteExecServerConnectArgs(
            url=where.url, environment_id=where.environment_id, token=token, options=options
        )
    )


@contextmanager
def reaching(box: Box, cure: str = "") -> Iterator[None]:
    """Turn an error of the Python client into a Leave with what to do: `cure`, if nothing better is known."""
    try:
        yield
    except ExecServerError as error:
        raise unreachable(
            f"{shown(box.name, 200)}: {shown(told(error), 1000)}", cure_for(box, error) or cure
        ) from None
    except UnicodeEncodeError as error:  # JSON has no other text
        text = f"'{shown(str(error.object), 200)}' is no UTF-8, and only paths may be that"
        raise Leave(WRONG_USAGE, stderr=f"Error: {text}\n") from None


def told(error: ExecServerError) -> str:
    """Return what an error tells a person: nothing of the contract's methods and codes."""
    if isinstance(error, RequestFailed):
        return error.message.removeprefix(f"{error.method}: ")
    return str(error)


def patience(limit_s: float | None = None) -> gevent.Timeout:
    """Return a limit for a box that is connected and does not answer, a minute; it raises WaitTimeout."""
    limit_s = _ANSWER_S if limit_s is None else limit_s
    return gevent.Timeout(limit_s, _too_late(limit_s))


def out_of_patience(waited_s: float) -> WaitTimeout | None:
    """Return the error of `patience` for who has waited so long without it; None if he still waits."""
    return _too_late(_ANSWER_S) if waited_s > _ANSWER_S else None


def _too_late(limit_s: float) -> WaitTimeout:
    return WaitTimeout(f"the box is connected, but did not answer within {limit_s:g} s")


@contextmanager
def asking(box: Box) -> Iterator[None]:
    """Do as `reaching`, for requests that a box answers at once: after a minute it is given up."""
    with reaching(box), patience():
        yield


def cure_for(box: Box, error: ExecServerError) -> str:
    """Return what a person can do about an error on the way to a box; empty if nothing is known."""
    text = str(error)
    if isinstance(error, RegistryRefused) or any(each in text for each in _TOKEN_WANTED):
        return target.TOKEN_CURE
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return _TRUST_CURE
    if isinstance(error, TokenFileUnusable):
        return error.hint
    if isinstance(error, ConnectFailed) and isinstance(box.where, Server):
        return "start `execserver --listen URL` there, and look at the URL and the network in between"
    if isinstance(box.where, Ssh) and not isinstance(error, RequestFailed):
        port = f"-p {box.where.port} " if box.where.port else ""
        works = f"`ssh {port}{box.where.host} {box.where.program} --version` must work"
        return f"look at what ssh printed; {works}, or name another program: ssh:HOST/PATH"
    return ""
