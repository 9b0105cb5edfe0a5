"""Use an exec-server from Python: run processes, work on files, make HTTP requests on its machine.

    from execserver.client import ExecServerClient, Output

    with ExecServerClient.connect("ws://127.0.0.1:8765") as client:
        process = client.start(["sh", "-c", "echo out; echo err >&2; exit 3"], cwd="/tmp")
        for event in process:
            if isinstance(event, Output):
                print(event.stream, event.data)
        print("exit code", process.wait())

        print(client.start(["uname", "-a"]).communicate().stdout.decode())
        client.write_file("/tmp/hello", b"hello")
        print(client.read_file("/tmp/hello"))

Calls block the calling greenlet only: several greenlets may use one client at once, and a plain script, which
is one greenlet, needs to know nothing about gevent.  Nothing is monkey patched.  A client must be used in the
thread that made it.  Other work of a gevent program goes on as long as it is cooperative.

`connect_remote` reaches a machine without open ports through a relay, end-to-end encrypted.

A lost connection is resumed automatically and running processes go on; see `ExecServerClient`.  Unread output
is bounded; see `execserver.client.rules.flow_rules`.  Every error is an `ExecServerError`.

The names below are loaded when first used, so importing one module loads only what it needs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.client.carriers.transport import Transport
    from execserver.client.client import URL_VARIABLE, ExecServerClient
    from execserver.client.errors import (
        ConnectFailed,
        ConnectTimeout,
        ExecServerError,
        FileTooLarge,
        InternalError,
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
        TokenFileUnusable,
        TransportClosed,
        UnsupportedByServer,
        WaitTimeout,
    )
    from execserver.client.files import RemoteFile, RemoteFiles
    from execserver.client.http import HttpFailed, HttpResponse, HttpStream
    from execserver.client.options import ExecServerClientConnectOptions, RemoteExecServerConnectArgs
    from execserver.client.process import RemoteProcess
    from execserver.client.rules.collecting import CompletedProcess
    from execserver.client.rules.event_log import Closed, Event, Exited, Output, ReadState
    from execserver.client.rules.recovery import SessionState

__all__ = [
    "URL_VARIABLE",
    "Closed",
    "CompletedProcess",
    "ConnectFailed",
    "ConnectTimeout",
    "Event",
    "ExecServerClient",
    "ExecServerClientConnectOptions",
    "ExecServerError",
    "Exited",
    "FileTooLarge",
    "HttpFailed",
    "HttpResponse",
    "HttpStream",
    "InternalError",
    "InvalidParamsError",
    "InvalidPath",
    "InvalidRequestError",
    "InvalidUrl",
    "MethodNotFoundError",
    "NotFoundError",
    "Output",
    "OutputGap",
    "OutputTooLarge",
    "ProtocolViolation",
    "ReadState",
    "RegistryRefused",
    "RemoteConfigurationError",
    "RemoteExecServerConnectArgs",
    "RemoteFile",
    "RemoteFiles",
    "RemoteModeUnavailable",
    "RemoteProcess",
    "RequestFailed",
    "ResumeFailed",
    "SessionBusyError",
    "SessionState",
    "StartFailed",
    "StdinUnavailable",
    "TokenFileUnusable",
    "Transport",
    "TransportClosed",
    "UnsupportedByServer",
    "WaitTimeout",
]

_HOMES = {
    "URL_VARIABLE": "client",
    "Transport": "carriers.transport",
    "Closed": "rules.event_log",
    "CompletedProcess": "rules.collecting",
    "ConnectFailed": "errors",
    "ConnectTimeout": "errors",
    "Event": "rules.event_log",
    "ExecServerClient": "client",
    "ExecServerClientConnectOptions": "options",
    "ExecServerError": "errors",
    "Exited": "rules.event_log",
    "FileTooLarge": "errors",
    "HttpFailed": "http",
    "HttpResponse": "http",
    "HttpStream": "http",
    "InternalError": "errors",
    "InvalidParamsError": "errors",
    "InvalidPath": "errors",
    "InvalidRequestError": "errors",
    "InvalidUrl": "errors",
    "MethodNotFoundError": "errors",
    "NotFoundError": "errors",
    "Output": "rules.event_log",
    "OutputGap": "errors",
    "OutputTooLarge": "errors",
    "ProtocolViolation": "errors",
    "ReadState": "rules.event_log",
    "RegistryRefused": "errors",
    "RemoteConfigurationError": "errors",
    "RemoteExecServerConnectArgs": "options",
    "RemoteFile": "files",
    "RemoteFiles": "files",
    "RemoteModeUnavailable": "errors",
    "RemoteProcess": "process",
    "RequestFailed": "errors",
    "ResumeFailed": "errors",
    "SessionBusyError": "errors",
    "StartFailed": "errors",
    "SessionState": "rules.recovery",
    "StdinUnavailable": "errors",
    "TokenFileUnusable": "errors",
    "TransportClosed": "errors",
    "UnsupportedByServer": "errors",
    "WaitTimeout": "errors",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
