"""Why a call of a page was not carried out, as the page gets it."""

from __future__ import annotations

from typing import Final

from execserver.box.connecting import Box, cure_for
from execserver.client.errors import (
    ExecServerError,
    NotFoundError,
    RequestFailed,
    TransportClosed,
    UnsupportedByServer,
    WaitTimeout,
)
from execserver.leaving import Leave

FAILED: Final = "failed"
UNREACHABLE: Final = "unreachable"
UNSUPPORTED: Final = "unsupported"
CHANGED: Final = "changed"
EXISTS: Final = "exists"
NOT_FOUND: Final = "not-found"
WRONG: Final = "wrong"
BUSY: Final = "busy"
TIMEOUT: Final = "timeout"
_LONGEST: Final = 2000
_WORDS: Final = (
    ("file has changed", CHANGED),
    ("file exists", EXISTS),
    ("(os error 17)", EXISTS),
    ("(os error 2)", NOT_FOUND),
)


class CallFailed(Exception):
    """A call was not carried out: `code` is one of this module's words, `hint` what a person can do."""

    def __init__(self, message: str, code: str = FAILED, hint: str | None = None) -> None:
        super().__init__(message[:_LONGEST])
        self.code = code
        self.hint = hint

    def members(self) -> dict[str, str | None]:
        """Return it for JSON."""
        return {"message": str(self), "hint": self.hint, "code": self.code}


def of_client(error: ExecServerError, box: Box | None = None) -> CallFailed:
    """Return what an error of the Python client is to a page."""
    text = error.message if isinstance(error, RequestFailed) else str(error)
    hint = (cure_for(box, error) or None) if box is not None else None
    return CallFailed(text, _code(error, text), hint)


def _code(error: ExecServerError, text: str) -> str:
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    if isinstance(error, RequestFailed):
        # There are no codes for these in the contract: the words are those of this project's server.
        for words, code in _WORDS:
            if words in text:
                return code
        return FAILED
    if isinstance(error, WaitTimeout):
        return TIMEOUT
    if isinstance(error, UnsupportedByServer):
        return UNSUPPORTED
    return UNREACHABLE if isinstance(error, TransportClosed) else FAILED


def of_leave(leave: Leave) -> CallFailed:
    """Return what the end of a verb is to a page: its text, and what to do about it."""
    message, _, cure = leave.stderr.strip().partition("\n  What to do: ")
    return CallFailed(message.removeprefix("Error: "), FAILED, cure or None)
