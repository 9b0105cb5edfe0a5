"""Everything that this package raises on purpose: one tree, rooted in `ExecServerError`.

Each error has a `hint`: what to do about it, or None.  Those of the server are `RequestFailed` with `code`,
`message`, `method` and `data` (None if the server sent none).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from execserver.client.errors import (
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
    TransferFailed,
    TransportClosed,
    UnsupportedByServer,
    WaitTimeout,
)

if TYPE_CHECKING:
    from execserver_client.result import Result

__all__ = [
    "CommandFailed",
    "CommandTimeout",
    "ConnectFailed",
    "ConnectTimeout",
    "ExecServerError",
    "FileTooLarge",
    "InternalError",
    "InvalidBox",
    "InvalidParamsError",
    "InvalidPath",
    "InvalidRequestError",
    "InvalidUrl",
    "MethodNotFoundError",
    "NotFoundError",
    "OutputGap",
    "OutputTooLarge",
    "ProtocolViolation",
    "RegistryRefused",
    "RemoteConfigurationError",
    "RemoteModeUnavailable",
    "RequestFailed",
    "ResumeFailed",
    "SessionBusyError",
    "StartFailed",
    "StdinUnavailable",
    "TransferFailed",
    "TransportClosed",
    "UnsupportedByServer",
    "WaitTimeout",
]

_SHOWN = 400  # characters of stderr in a message


class CommandFailed(ExecServerError):
    """A command of `run(..., check=True)` ended with another exit code than 0; `result` has its output."""

    def __init__(self, argv: tuple[str, ...], result: Result) -> None:
        super().__init__(argv, result)
        self.argv = argv
        self.result = result

    def __str__(self) -> str:
        code = self.result.exit_code
        why = ", denied by its sandbox" if self.result.sandbox_denied else ""
        # Escaped: what a command prints must not act on the terminal that shows this message.
        end = ascii(self.result.stderr[-_SHOWN:].decode("utf-8", "replace").strip())
        return f"{self.argv[0]!r} ended with {code}{why}; the end of its stderr: {end}"

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        if self.result.sandbox_denied:
            return "allow what it needs: Sandbox.workspace_write(roots=[...], network=True), or no sandbox"
        return None


class CommandTimeout(WaitTimeout):
    """A command of `run` took too long and was killed; `result` has what it had printed until then."""

    def __init__(self, argv: tuple[str, ...], timeout: float, result: Result) -> None:
        super().__init__(argv, timeout, result)
        self.argv = argv
        self.timeout = timeout
        self.result = result

    def __str__(self) -> str:
        return f"{self.argv[0]!r} did not end within {self.timeout:g} s and was killed"

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        return "give it more time with timeout=, or start it with box.start and follow it"
