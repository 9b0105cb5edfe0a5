"""From a BOX to the ways to its server: which transport, how long to wait, whether it can be made again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from execserver.box import target
from execserver.box.address import BadBox, Own, Relay, Server, Ssh
from execserver.client.carriers.credentials import token_in
from execserver.client.errors import InvalidBox, InvalidUrl, UnsupportedByServer
from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
from execserver.client.rules.recovery import Pauses
from execserver.protocol.paths import PathUri
from execserver_client._relay_route import relay_route
from execserver_client._transport import OpenTransport, Transport

PROGRAM_VARIABLE: Final = "EXECSERVER_PROGRAM"
_PROGRAM: Final = "execserver"
_TOKEN_CURE: Final = f"give a token: token=, token_file=, {target.TOKEN_VARIABLE} or the boxes file"
# A machine that vanished is missed after a minute, where ssh itself would wait for hours.
_SSH_OPTIONS: Final = ("-oBatchMode=yes", "-oServerAliveInterval=20", "-oServerAliveCountMax=3")
_GRACE_S: Final = 2.0  # for ssh, which complains when it is interrupted


class Route(NamedTuple):
    """What a session needs; `home`: where commands start if they do not say, None for that of the box."""

    open_transport: OpenTransport
    options: ExecServerClientConnectOptions
    can_resume: bool
    pauses: Pauses | None = None
    home: PathUri | None = None


def find(
    box: str | None, token: str | None, token_file: str | None, environ: Mapping[str, str]
) -> target.Box:
    """Return what a BOX means, with its token.  Raises `InvalidBox`."""
    try:
        found = target.of_text(box, environ, _own_command(box, environ))
        return target.with_token(found, token, token_file, environ, _TOKEN_CURE)
    except BadBox as error:
        raise InvalidBox(str(error), error.cure) from None


def route_to(box: target.Box, options: ExecServerClientConnectOptions) -> Route:
    """Return the way to a box.

    Raises `InvalidUrl` and its subclasses, `RemoteModeUnavailable`, and `UnsupportedByServer` for a session
    that is to outlive a server which is started for this client alone.
    """
    match box.where:
        case Own():
            here = PathUri.from_native(os.fsencode(os.getcwd()))
            return _over_pipes(box.where.command, options, grace=0.0)._replace(home=here)
        case Ssh():
            # Nobody is there to be asked for a passphrase.
            limit = f"-oConnectTimeout={max(1, round(options.connect_timeout))}"
            return _over_pipes(box.where.command(*_SSH_OPTIONS, limit), options, grace=_GRACE_S)
        case Relay():
            return _through_relay(box, box.where, options)
        case Server():
            return _to_listener(box.where.url, options.replace(token=box.token, token_file=box.token_file))


def _to_listener(url: str, options: ExecServerClientConnectOptions) -> Route:
    async def open_transport(timeout: float) -> Transport:
        # Late: a private server needs no WebSockets.
        from execserver_client._websocket import WebSocketTransport

        return await WebSocketTransport.connect(url, options, timeout)

    return Route(open_transport, options, can_resume=True)


def _through_relay(box: target.Box, where: Relay, options: ExecServerClientConnectOptions) -> Route:
    if box.token is None and box.token_file is None:
        raise InvalidUrl("a relay asks for a token")
    found = relay_route(
        RemoteExecServerConnectArgs(
            url=where.url,
            environment_id=where.environment_id,
            token=box.token if box.token is not None else token_in(str(box.token_file)),
            options=options,
        )
    )
    limited = options.replace(max_in_flight=found.max_in_flight)
    return Route(found.open_transport, limited, can_resume=True, pauses=found.pauses)


def _over_pipes(command: Sequence[str], options: ExecServerClientConnectOptions, *, grace: float) -> Route:
    wishes = (options.session_name, options.keep_ms, options.resume_session_id, options.resume_session_name)
    if any(wish is not None for wish in wishes):
        raise UnsupportedByServer(
            "a server that is started for one client ends with it: no session of it can be kept or resumed",
            "let a server listen there (`execserver --listen URL`), and connect to its URL",
        )

    from execserver_client._stdio import StdioTransport

    async def open_transport(timeout: float) -> Transport:
        return await StdioTransport.start(command, None, options.max_message_bytes, grace=grace)

    # To start it and to reach its machine is part of its first answer here.
    first = options.connect_timeout + options.initialize_timeout
    return Route(open_transport, options.replace(initialize_timeout=first), can_resume=False)


def _own_command(box: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words that start the private server, none if no private one is wanted.

    Raises `InvalidBox` if it is wanted and there is no program.
    """
    if box is not None or environ.get(target.BOX_VARIABLE):
        return ()
    import shutil  # late: it loads every kind of compression

    given = environ.get(PROGRAM_VARIABLE)
    program = given or shutil.which(_PROGRAM, path=environ.get("PATH"))
    if program is None:
        raise InvalidBox(
            f"no box is named, and there is no program {_PROGRAM} on PATH to start a private server with",
            f"name a box, set {target.BOX_VARIABLE} or {PROGRAM_VARIABLE}, or install {_PROGRAM}",
        )
    return (program,)
