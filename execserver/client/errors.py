"""The errors of the client: one tree, rooted in `ExecServerError`.

Answers of the kind `error` become `RequestFailed` or the subclass of their code (wire contract, section 4).
The others concern the connection to the server (`TransportClosed` and its subclasses), time limits, or output
that is lost (`OutputGap`).  Each says in `hint` what to do about it, where something general can be said.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

_E = TypeVar("_E", bound=BaseException)

_TOKEN_CURE = "give a token that counts there: token= or token_file="
_NEWER_SERVER = "run this project's server on the box, of this version or a newer one"


class ExecServerError(Exception):
    """The base class of everything that this package raises on purpose."""

    _hint: ClassVar[str | None] = None

    @property
    def hint(self) -> str | None:
        """What to do about it, None where nothing general can be said."""
        return self._hint


class InvalidUrl(ExecServerError, ValueError):
    """The text is no URL that this client can connect to."""

    _hint = "a server is ws://HOST:PORT, wss://HOST or unix:///PATH"


class InvalidBox(InvalidUrl):
    """The text names no box, or the box cannot be used; `hint` says what to do."""

    def __init__(self, text: str, cure: str) -> None:
        super().__init__(text, cure)
        self._cure = cure

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self._cure


class RemoteConfigurationError(InvalidUrl):
    """The configuration of registry, environment and token is incomplete or cannot be used."""

    _hint = "give the relay's URL, the environment and a token"


class InvalidPath(ExecServerError, ValueError):
    """The text is no path on the server: it must be absolute, or a `file:` URI."""

    _hint = "write an absolute path of the box, or a file: URI"


class UnsupportedByServer(ExecServerError):
    """The server does not offer what was asked for; nothing was sent."""

    def __init__(self, text: str, cure: str = _NEWER_SERVER) -> None:
        super().__init__(text)
        self._cure = cure

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self._cure


class RemoteModeUnavailable(ExecServerError):
    """Remote mode cannot be used here: its cryptography cannot be loaded."""

    _hint = "install the package `cryptography`"


class RegistryRefused(ExecServerError):
    """The registry refuses the connection for good: wrong token, unknown environment."""

    _hint = _TOKEN_CURE


class TransportClosed(ExecServerError):
    """The connection ended before the answer; whether the server has acted on the request is unknown."""


class ConnectFailed(TransportClosed):
    """No connection could be made: refused, unknown host, TLS error, or no WebSocket server there."""

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        if "status 401" in str(self) or "status 403" in str(self):
            return _TOKEN_CURE
        return "start `execserver --listen URL` there, and look at the URL and the network in between"


class TokenFileUnusable(ConnectFailed):
    """The file with the token cannot be read, or is too large to hold one."""

    @property
    def hint(self) -> str:
        """What to do about it."""
        return "name a file that you can read and that has the token on one line"


class StartFailed(ConnectFailed):
    """The program that was to be the server could not be started, or ended before it answered."""

    @property
    def hint(self) -> str:
        """What to do about it."""
        return "look at what it printed on stderr; with --version it must work here"


class ResumeFailed(TransportClosed):
    """The connection was lost and the session could not be resumed; its processes are lost, too."""

    _hint = "connect again; a session that is kept outlives longer losses"


class ConnectTimeout(ConnectFailed, TimeoutError):
    """The server did not accept the connection, or did not answer `initialize`, in time."""


class WaitTimeout(ExecServerError, TimeoutError):
    """The caller's own time limit is over; the connection and the process go on."""

    _hint = "wait again, or with a longer timeout: what was waited for goes on"


class ProtocolViolation(ExecServerError):
    """The server sent something that the wire contract does not allow."""

    _hint = "look whether the URL leads to an exec-server, and whether its version fits"


class StdinUnavailable(ExecServerError):
    """Nothing can be written to the process; `status` is the server's reason."""

    def __init__(self, process_id: str, status: str) -> None:
        super().__init__(f"process {process_id} takes no input: {status}")
        self.status = status

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        never_open = self.status == "stdinClosed"
        return "start it with pipe_stdin=True or tty=True" if never_open else None


class OutputTooLarge(ExecServerError):
    """A process printed more than the limit of the caller; the rest can still be iterated."""

    _hint = "raise max_output, or iterate over the output as it comes"


class FileTooLarge(ExecServerError):
    """A file has more bytes than the server reported or the caller allows; it can be read in blocks."""

    _hint = "raise max_bytes, or read the file in blocks"


class TransferFailed(ExecServerError):
    """Not everything was copied; `errors` are the names, each with the reason.  The rest was copied."""

    _hint = "`errors` names what is missing: see to that, and copy again"

    def __init__(self, errors: tuple[tuple[str, str], ...]) -> None:
        super().__init__(errors)
        self.errors = errors

    def __str__(self) -> str:
        (name, reason), more = self.errors[0], len(self.errors) - 1
        text = f"{name}: {reason}" if name else reason
        return f"{text} (and {more} more)" if more else text


class OutputGap(ExecServerError):
    """The events `first_seq` to `last_seq` of a process are lost; iteration can go on after them.

    `lost_bytes` is None if the server does not report how much output that was.
    """

    _hint = "take the output faster, or let the client hold more: max_unread_bytes_while_waiting"

    def __init__(self, process_id: str, first_seq: int, last_seq: int, lost_bytes: int | None = None) -> None:
        size = "an unknown number of" if lost_bytes is None else str(lost_bytes)
        super().__init__(
            f"output of process {process_id} is lost: events {first_seq} to {last_seq}, {size} bytes"
        )
        self.process_id = process_id
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.lost_bytes = lost_bytes


class RequestFailed(ExecServerError):
    """The server answered with an error: its `code` and `message`, and the `method` of the request.

    `data` are the plain JSON values that came with it, None if there were none.
    """

    def __init__(self, code: int, message: str, method: str = "", data: object = None) -> None:
        super().__init__(f"{method}: {message} (code {code})" if method else f"{message} (code {code})")
        self.code = code
        self.message = message
        self.method = method
        self.data = data

    @property
    def hint(self) -> str | None:
        """What to do about it, where the message of this project's server leaves no doubt."""
        if self.method == "process/start" and self.message.endswith("(os error 2)"):
            return "there is no such program or folder on the box: look at argv[0], PATH and cwd"
        return self._hint


class InvalidRequestError(RequestFailed):
    """-32600: wrong state, unknown process, or refused by argument or permission."""


class MethodNotFoundError(RequestFailed):
    """-32601: the server does not have this method."""

    _hint = _NEWER_SERVER


class InvalidParamsError(RequestFailed):
    """-32602: the params could not be decoded, or a value was refused."""


class InternalError(RequestFailed):
    """-32603: the operating system or a peer of the server failed."""


class NotFoundError(RequestFailed):
    """-32004: no such file or file handle."""


class SessionBusyError(RequestFailed):
    """-32010: another live connection holds the session."""

    _hint = "end the other client of this session, or connect without resuming it"


_BY_CODE: dict[int, type[RequestFailed]] = {
    -32600: InvalidRequestError,
    -32601: MethodNotFoundError,
    -32602: InvalidParamsError,
    -32603: InternalError,
    -32004: NotFoundError,
    -32010: SessionBusyError,
}


def request_failed(code: int, message: str, method: str = "", data: object = None) -> RequestFailed:
    """Return an error of the class for `code`."""
    return _BY_CODE.get(code, RequestFailed)(code, message, method, data)


def kept(error: _E) -> _E:
    """Return a copy of an error without tracebacks but with its cause, to keep it or to raise a kept one.

    A traceback holds the frames that led to the error, and with them the object that keeps the error: this
    cycle would wait for the garbage collector.
    """
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(vars(error))
    cause = error.__cause__
    made.__cause__ = cause if cause is None or cause.__traceback__ is None else kept(cause)
    return made
