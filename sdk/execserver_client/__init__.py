"""Use an exec-server from asyncio: run processes, work on files, reach ports and HTTP on its machine.

    import asyncio

    from execserver_client import Output, connect


    async def main() -> None:
        async with connect() as box:
            result = await box.run(["uname", "-sr"], timeout=30)
            print(result.exit_code, result.text)

            async with await box.start(["sh", "-c", "echo one; echo two >&2"]) as process:
                async for event in process:
                    if isinstance(event, Output):
                        print(event.stream, event.data)
                print("exit code", await process.wait())


    asyncio.run(main())

`connect` takes what `execserver run --box` takes.  A lost connection is made again by itself, and what runs
goes on; see `Box`.  Unread output is bounded; see `Process`.  Every error is an `ExecServerError` with a
`hint`.  `execserver_client.sync` has the same names for programs without asyncio.

The names below are loaded when first used.  What this package shares with the server's own client, without
gevent, is imported from `execserver` in a checkout; the wheel carries copies of those modules as
`execserver_client._shared`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver_client.box import Box
    from execserver_client.connecting import connect
    from execserver_client.errors import (
        CommandFailed,
        CommandTimeout,
        ConnectFailed,
        ConnectTimeout,
        ExecServerError,
        FileTooLarge,
        InternalError,
        InvalidBox,
        InvalidParamsError,
        InvalidPath,
        InvalidRequestError,
        InvalidUrl,
        MethodNotFoundError,
        NotFoundError,
        OutputGap,
        OutputTooLarge,
        ProtocolViolation,
        RegistryRefused,
        RemoteConfigurationError,
        RemoteModeUnavailable,
        RequestFailed,
        ResumeFailed,
        SessionBusyError,
        StartFailed,
        StdinUnavailable,
        TransportClosed,
        UnsupportedByServer,
        WaitTimeout,
    )
    from execserver_client.events import (
        EMPTY_ENVIRONMENT,
        INHERIT_ENVIRONMENT,
        Closed,
        CompletedProcess,
        EndCause,
        Event,
        ExecEnvPolicy,
        ExecEnvPolicyInherit,
        Exited,
        LimitEnforcement,
        Output,
        ProcessEnd,
        ReadState,
        ResourceLimits,
        ResourceUsage,
        SessionState,
    )
    from execserver_client.options import ConnectOptions
    from execserver_client.process import OutputStream, Process
    from execserver_client.result import Result
    from execserver_client.sandbox import Sandbox

__all__ = [
    "EMPTY_ENVIRONMENT",
    "INHERIT_ENVIRONMENT",
    "Box",
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
    "EMPTY_ENVIRONMENT": "events",
    "INHERIT_ENVIRONMENT": "events",
    "Box": "box",
    "Closed": "events",
    "CommandFailed": "errors",
    "CommandTimeout": "errors",
    "CompletedProcess": "events",
    "ConnectFailed": "errors",
    "ConnectOptions": "options",
    "ConnectTimeout": "errors",
    "Event": "events",
    "ExecEnvPolicy": "events",
    "ExecEnvPolicyInherit": "events",
    "EndCause": "events",
    "LimitEnforcement": "events",
    "ProcessEnd": "events",
    "ResourceLimits": "events",
    "ResourceUsage": "events",
    "ExecServerError": "errors",
    "Exited": "events",
    "FileTooLarge": "errors",
    "InternalError": "errors",
    "InvalidBox": "errors",
    "InvalidParamsError": "errors",
    "InvalidPath": "errors",
    "InvalidRequestError": "errors",
    "InvalidUrl": "errors",
    "MethodNotFoundError": "errors",
    "NotFoundError": "errors",
    "Output": "events",
    "OutputGap": "errors",
    "OutputStream": "process",
    "OutputTooLarge": "errors",
    "Process": "process",
    "ProtocolViolation": "errors",
    "ReadState": "events",
    "RegistryRefused": "errors",
    "RemoteConfigurationError": "errors",
    "RemoteModeUnavailable": "errors",
    "RequestFailed": "errors",
    "Result": "result",
    "ResumeFailed": "errors",
    "Sandbox": "sandbox",
    "SessionBusyError": "errors",
    "StartFailed": "errors",
    "SessionState": "events",
    "StdinUnavailable": "errors",
    "TransportClosed": "errors",
    "UnsupportedByServer": "errors",
    "WaitTimeout": "errors",
    "connect": "connecting",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
