"""Starting a command on a box the way a person means it: where, with which variables, in which sandbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

from execserver.box.connecting import Box, asking, connect, reaching, unreachable
from execserver.box.manner import Predict
from execserver.box.shown import shown
from execserver.client.errors import RequestFailed, UnsupportedByServer
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.policies import policy_context
from execserver.client.rules.starting import INHERIT_ENVIRONMENT, start_params
from execserver.leaving import Leave
from execserver.protocol.errors import RpcError
from execserver.protocol.paths import PathUri
from execserver.protocol.resource_limits import LimitEnforcement, ResourceLimits

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.client.process import RemoteProcess
    from execserver.protocol.process import ExecEnvPolicy, ExecParams

NOT_FOUND: Final = 127
NOT_STARTED: Final = 126
_OF_THE_TERMINAL: Final = ("TERM", "COLORTERM")
_PLAIN_SHELL: Final = "/bin/sh"
_AS_A_MEMBER_AND_AN_OPTION: Final = ('"enforce": "best"', "--limit enforce=best")
_NO_SUCH: Final = "os error 2)"
_HOME: Final = (None, "~", "")
# By the contract.  0.169.0 refuses it, and has said where its home is when it is asked again.
_HOME_THERE: Final = PathUri("~", None)
_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024  # ten times what a server sends at once


class Command(NamedTuple):
    """What to run; `cwd` None is the home of the box's user, on this machine the folder one is in."""

    argv: Sequence[str]
    cwd: str | None = None
    env: Mapping[str, str] = {}
    sandbox: str | None = None
    tty: bool = False
    pipe_stdin: bool = False
    arg0: str | None = None
    limits: Mapping[str, int] = {}  # as `limit_options` returns them
    record: str | None = None
    predict: Predict = Predict.NEVER


class _Plainly(TypedDict):
    """How a command is started, as far as every server knows it."""

    cwd: PathUri
    env: dict[str, str]
    env_policy: ExecEnvPolicy
    tty: bool
    pipe_stdin: bool
    arg0: str | None


def open_client(
    box: Box, ahead: Callable[[], ExecParams] | None = None, **options: object
) -> ExecServerClient:
    """Connect for a person; raises Leave.  `ahead` is as for `connect`."""
    with reaching(box):
        chosen = {"client_name": "execserver", "max_message_bytes": _MAX_MESSAGE_BYTES, **options}
        return connect(box, ExecServerClientConnectOptions(**chosen), ahead=ahead)  # type: ignore[arg-type]


def params_ahead(command: Command) -> ExecParams | None:
    """Return what starts a command on a box of which nothing is known; None if that takes knowledge."""
    if command.sandbox is not None or command.limits or command.record is not None:
        return None
    if command.cwd in _HOME:
        cwd = _HOME_THERE
    elif command.cwd is not None and command.cwd.startswith("/"):
        cwd = PathUri.from_native(os.path.normpath(os.fsencode(command.cwd)))
    else:
        return None
    return start_params(
        command.argv, **_plainly(command, cwd), sandbox=None, process_id=None, process_name=None
    )


def start(client: ExecServerClient, box: Box, command: Command, name: str | None = None) -> RemoteProcess:
    """Start a command.  Raises Leave: 127 if there is no such program or folder, 126 if it cannot be run."""
    cwd = place_of(client, box, command.cwd)
    if command.cwd in _HOME and client.server_info is None and not (box.is_private or command.sandbox):
        cwd = _HOME_THERE  # a server of the older contract does not say where that is
    with asking(box):
        try:
            return client.started_ahead() or client.start(
                command.argv,
                **_plainly(command, cwd),
                sandbox=_sandbox(command.sandbox, cwd),
                process_name=name,
                limits=limits_of(command.limits),
                record=command.record,
            )
        except UnsupportedByServer as error:
            raise _not_run(NOT_STARTED, box, command, cwd, str(error)) from None
        except RequestFailed as error:
            status = NOT_FOUND if error.message.endswith(_NO_SUCH) else NOT_STARTED
            raise _not_run(status, box, command, cwd, error.message) from None


def _not_run(status: int, box: Box, command: Command, cwd: PathUri, why: str) -> Leave:
    text = f"cannot run {shown(command.argv[0], 200)} in {_place(cwd)} of {shown(box.name, 200)}"
    why = why.replace(*_AS_A_MEMBER_AND_AN_OPTION)
    advice = ""
    if status == NOT_FOUND:  # of the two the box does not say which
        folder = "" if command.cwd in _HOME else "make that folder, if it is not there (`mkdir -p`); or "
        advice = f"\n  What to do: {folder}give the program's path: there PATH is that of the server"
    return Leave(status, stderr=f"Error: {text}: {shown(why, 1000)}{advice}\n")


def _place(path: PathUri) -> str:
    try:
        return shown(path.native(), 200)
    except RpcError:  # of another system, or the home of a server that does not say where that is
        return shown(path.uri, 200)


def home_of(client: ExecServerClient, box: Box) -> PathUri:
    """Return the folder in which commands start on a box."""
    if box.is_private:
        return PathUri.from_native(os.getcwdb())
    info = client.server_info
    if info is not None:
        return info.user_home_dir or info.cwd or PathUri.from_native(b"/")
    return PathUri.from_native(b"/")


def login_shell(client: ExecServerClient) -> str:
    """Return the login shell of the box's user, /bin/sh if the box does not say."""
    info = client.server_info
    return info.shell.path if info is not None and info.shell.path.startswith("/") else _PLAIN_SHELL


def place_of(client: ExecServerClient, box: Box, asked: str | None) -> PathUri:
    """Return the path that a person means: relative to where commands start there, None for that folder."""
    home = home_of(client, box)
    if asked is None or asked in _HOME:
        return home
    if client.server_info is None and not (box.is_private or asked.startswith("/")):
        text = "this server does not say where its home is"
        raise unreachable(f"{shown(box.name, 200)}: {text}", "name the folder by its full path")
    try:
        base = home.native()
    except RpcError:  # of another system, or made up
        raise unreachable(
            f"{shown(box.name, 200)}: its home is {shown(home.uri, 200)}",
            "use another box",
        ) from None
    return PathUri.from_native(os.path.normpath(os.path.join(base, os.fsencode(asked.removeprefix("~/")))))


def limits_of(given: Mapping[str, int]) -> ResourceLimits | None:
    """Return the limits that a person asks for; None where there are none."""
    if not given:
        return None
    values = {name: value for name, value in given.items() if name != "best"}
    return ResourceLimits(
        **values, enforce=LimitEnforcement.BEST if given.get("best") else LimitEnforcement.KERNEL
    )


def _plainly(command: Command, cwd: PathUri) -> _Plainly:
    return {
        "cwd": cwd,
        "env": _variables(command),
        "env_policy": INHERIT_ENVIRONMENT,
        "tty": command.tty,
        "pipe_stdin": command.pipe_stdin and not command.tty,
        "arg0": command.arg0,
    }


def _variables(command: Command) -> dict[str, str]:
    own = {name: os.environ[name] for name in _OF_THE_TERMINAL if name in os.environ} if command.tty else {}
    return {**own, **command.env}


def _sandbox(policy: str | None, cwd: PathUri) -> dict[str, object] | None:
    if policy is None:
        return None
    return policy_context(policy, cwd)
