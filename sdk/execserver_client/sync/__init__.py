"""The blocking twin of `execserver_client`: the same names, for any thread, without asyncio in sight.

    from execserver_client.sync import connect

    with connect() as box:
        print(box.run(["uname", "-sr"], timeout=30).text)

What is asynchronous there blocks here: `async with` is `with`, `async for` is `for`, `aclose` is `close`.
All clients of a process live in one thread of their own.  Ctrl-C ends what is waited for.  A box that was
made before a fork is refused in the child.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver_client import (
        EMPTY_ENVIRONMENT,
        INHERIT_ENVIRONMENT,
        Closed,
        CommandFailed,
        CommandTimeout,
        CompletedProcess,
        ConnectFailed,
        ConnectOptions,
        ConnectTimeout,
        EndCause,
        Event,
        ExecEnvPolicy,
        ExecEnvPolicyInherit,
        ExecServerError,
        Exited,
        FileTooLarge,
        InternalError,
        InvalidBox,
        InvalidParamsError,
        InvalidPath,
        InvalidRequestError,
        InvalidUrl,
        LimitEnforcement,
        MethodNotFoundError,
        NotFoundError,
        Output,
        OutputGap,
        OutputTooLarge,
        ProcessEnd,
        ProtocolViolation,
        ReadState,
        RegistryRefused,
        RemoteConfigurationError,
        RemoteModeUnavailable,
        RequestFailed,
        ResourceLimits,
        ResourceUsage,
        Result,
        ResumeFailed,
        Sandbox,
        SessionBusyError,
        SessionState,
        StartFailed,
        StdinUnavailable,
        TransportClosed,
        UnsupportedByServer,
        WaitTimeout,
    )
    from execserver_client.sync._loop_thread import ClientClosed, ForkedClient
    from execserver_client.sync.box import Box
    from execserver_client.sync.connecting import connect
    from execserver_client.sync.process import OutputStream, Process

__all__ = [
    "EMPTY_ENVIRONMENT",
    "INHERIT_ENVIRONMENT",
    "Box",
    "ClientClosed",
    "Closed",
    "CommandFailed",
    "CommandTimeout",
    "CompletedProcess",
    "ConnectFailed",
    "ConnectOptions",
    "ConnectTimeout",
    "EndCause",
    "Event",
    "ExecEnvPolicy",
    "ExecEnvPolicyInherit",
    "ExecServerError",
    "Exited",
    "FileTooLarge",
    "ForkedClient",
    "InternalError",
    "InvalidBox",
    "InvalidParamsError",
    "InvalidPath",
    "InvalidRequestError",
    "InvalidUrl",
    "LimitEnforcement",
    "MethodNotFoundError",
    "NotFoundError",
    "Output",
    "OutputGap",
    "OutputStream",
    "OutputTooLarge",
    "Process",
    "ProcessEnd",
    "ProtocolViolation",
    "ReadState",
    "RegistryRefused",
    "RemoteConfigurationError",
    "RemoteModeUnavailable",
    "RequestFailed",
    "ResourceLimits",
    "ResourceUsage",
    "Result",
    "ResumeFailed",
    "Sandbox",
    "SessionBusyError",
    "SessionState",
    "StartFailed",
    "StdinUnavailable",
    "TransportClosed",
    "UnsupportedByServer",
    "WaitTimeout",
    "connect",
]

_HOMES = {
    "Box": "box",
    "ClientClosed": "_loop_thread",
    "ForkedClient": "_loop_thread",
    "OutputStream": "process",
    "Process": "process",
    "connect": "connecting",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module; what does not block is that of `execserver_client`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = f"{__name__}.{_HOMES[name]}" if name in _HOMES else __name__.rpartition(".")[0]
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
