"""The protocol of one conversation: what is allowed when, and the answer to each line (shell tool contract).

    NEW --initialize--> GREETED --notifications/initialized--> OPEN

Any other first or second message ends the conversation with a WrongStart.  Malformed messages are answered
and change nothing.  Pure: `handle` returns what to do, in order, and does none of it.  A change of the
sandbox state applies to later calls, never to earlier ones.
"""

from __future__ import annotations

import enum
import logging
from typing import NamedTuple, TypeVar

import msgspec

from execserver.mcp import sandbox_state, tool
from execserver.mcp.elicitation import Answer
from execserver.mcp.jsonrpc import (
    BadLine,
    Id,
    Key,
    Notification,
    Reply,
    Request,
    encode_error,
    encode_failure,
    encode_result,
    parse,
)
from execserver.mcp.sandbox_state import SandboxState
from execserver.mcp.tool import ExecParams
from execserver.protocol.errors import InvalidParams, MethodNotFound, RpcError

_log = logging.getLogger(__name__)

NEWEST_PROTOCOL = "2025-06-18"
INSTRUCTIONS = "This server provides a tool to execute shell commands and return their output."
STATE_BYTES = 1024 * 1024  # of one sandbox state; only its list of writable roots may be long

_SHOWN_BYTES = 200
_ANSWERS = {answer.value: answer for answer in (Answer.ACCEPT, Answer.DECLINE, Answer.CANCEL)}
_REFUSED_STATE = "failed to deserialize sandbox state"


class Phase(enum.Enum):
    """How far the conversation has come; the values are words of error texts."""

    NEW = "initialized request"
    GREETED = "initialize notification"
    OPEN = "open"


class Send(NamedTuple):
    """Send this message."""

    message: bytes


class StartCall(NamedTuple):
    """Start a call of the tool, and answer it at its end."""

    id: Id
    params: ExecParams
    state: SandboxState | None


class CancelCall(NamedTuple):
    """End the call with this id, if there is one, and never answer it."""

    key: Key
    reason: str | None


class Answered(NamedTuple):
    """An approval prompt was answered."""

    key: Key
    answer: Answer


class WrongStart(NamedTuple):
    """The client began with another message; the program says so and exits with 1."""

    reason: str


Step = WrongStart | Send | StartCall | CancelCall | Answered


class _Initialize(msgspec.Struct, rename="camel"):
    protocol_version: str


class _CallParams(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    meta: dict[str, msgspec.Raw] | None = msgspec.field(default=None, name="_meta")


class _Cancelled(msgspec.Struct, rename="camel"):
    request_id: str | int | float
    reason: str | None = None


class _ElicitResult(msgspec.Struct):
    action: str


class Session:
    """One conversation with one client."""

    def __init__(self, version: str) -> None:
        """`version` is the version of this program, for `serverInfo`."""
        self._version = version
        self.phase = Phase.NEW
        self.state: SandboxState | None = None

    def handle(self, line: bytes) -> Step | None:
        """Return what to do about one line; None for nothing."""
        try:
            message = parse(line)
        except BadLine as error:
            return Send(error.answer)
        if self.phase is not Phase.OPEN:
            return self._start(message, line)
        if isinstance(message, Request):
            return self._request(message)
        if isinstance(message, Notification):
            return self._notification(message)
        return None if message.key is None else Answered(message.key, _answer(message))

    def ended(self) -> WrongStart | None:
        """Take the end of the input; return a WrongStart if the conversation was not open yet."""
        return None if self.phase is Phase.OPEN else WrongStart(f"connection closed: {self.phase.value}")

    def _start(self, message: Request | Notification | Reply, line: bytes) -> Step | None:
        if self.phase is Phase.NEW:
            if isinstance(message, Request) and message.method == "initialize":
                try:
                    greeting = self._initialize(message)
                except InvalidParams:
                    return _wrong("request", line)
                self.phase = Phase.GREETED
                return Send(encode_result(message.id.text, greeting))
            return _wrong("request", line)
        if isinstance(message, Notification) and message.method == "notifications/initialized":
            self.phase = Phase.OPEN
            return None
        return _wrong("notification", line)

    def _request(self, request: Request) -> Step:
        try:
            if request.method == "tools/call":
                return self._call(request)
            if request.method == sandbox_state.UPDATE:
                self.state = _state(request.params)
                return Send(encode_result(request.id.text, b"{}"))
            return Send(encode_result(request.id.text, self._plain(request)))
        except _RefusedState as refused:  # before RpcError, of which it is one
            return Send(encode_failure(request.id.text, refused.code, refused.message, refused.params))
        except RpcError as error:
            return Send(encode_error(request.id.text, error))

    def _plain(self, request: Request) -> bytes:
        """Return the result of a request that this module can answer by itself."""
        if request.method == "initialize":  # repeated: the answer is the same, and nothing changes
            return self._initialize(request)
        result = _PLAIN.get(request.method)
        if result is None:
            raise _NoSuchMethod(request.method)
        return result

    def _initialize(self, request: Request) -> bytes:
        wanted = _decode(request.params, _Initialize).protocol_version
        # Versions are dates, so the smaller text is the older version.
        return msgspec.json.encode(
            {
                "protocolVersion": min(wanted, NEWEST_PROTOCOL),
                "capabilities": {
                    "experimental": {
                        sandbox_state.CAPABILITY: {"version": "1.0.0"},
                        sandbox_state.META: {},
                    },
                    "tools": {},
                },
                "serverInfo": {"name": "codex-exec-mcp-server", "version": self._version},
                "instructions": INSTRUCTIONS,
            }
        )

    def _call(self, request: Request) -> StartCall:
        call = _decode(request.params, _CallParams)
        if call.name != tool.NAME:
            raise InvalidParams("tool not found")
        arguments = None if bytes(call.arguments) == b"null" else call.arguments
        params = tool.read_arguments(arguments)
        meta = call.meta or {}
        # A state in `_meta` applies to this call only; the newest clients send one with every call.
        own = meta.get(sandbox_state.META, meta.get(sandbox_state.CAPABILITY))
        return StartCall(request.id, params, self.state if own is None else _state(own))

    def _notification(self, notification: Notification) -> Step | None:
        if notification.method == sandbox_state.UPDATE:
            try:
                self.state = _state(notification.params)
            except InvalidParams as error:  # a notification has no answer; the state stays as it was
                _log.warning("a notification of the sandbox state was refused: %s", error.message)
        elif notification.method == "notifications/cancelled":
            try:
                cancelled = _decode(notification.params, _Cancelled)
            except InvalidParams:
                return None
            return CancelCall(cancelled.request_id, cancelled.reason)
        return None


class _NoSuchMethod(MethodNotFound):
    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.message = f"method not found: {method}"


class _RefusedState(InvalidParams):
    """A sandbox state that is refused; `params` is its JSON text, which the error returns as `data`."""

    def __init__(self, params: msgspec.Raw) -> None:
        super().__init__(_REFUSED_STATE)
        self.params = params


_PLAIN: dict[str, bytes] = {
    "ping": b"{}",
    "tools/list": msgspec.json.encode({"tools": [tool.DESCRIPTION]}),
    "resources/list": b'{"resources":[]}',
    "resources/templates/list": b'{"resourceTemplates":[]}',
    "prompts/list": b'{"prompts":[]}',
    "completion/complete": b'{"completion":{"values":[]}}',
}

_T = TypeVar("_T")


def _decode(params: msgspec.Raw | None, kind: type[_T]) -> _T:
    """Return typed params.  Raises InvalidParams."""
    try:
        return msgspec.json.decode(b"null" if params is None else params, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidParams(f"invalid params: {error}") from None


def _state(params: msgspec.Raw | None) -> SandboxState:
    """Return the sandbox state that params describe.  Raises InvalidParams."""
    if params is None:
        raise InvalidParams("missing params for sandbox state request")
    if len(bytes(params)) > STATE_BYTES:
        raise InvalidParams(_REFUSED_STATE)
    try:
        return sandbox_state.read_state(msgspec.json.decode(params))
    except (RpcError, msgspec.DecodeError):
        raise _RefusedState(params) from None


def _answer(reply: Reply) -> Answer:
    if reply.result is None:
        return Answer.FAILED
    try:
        action = msgspec.json.decode(reply.result, type=_ElicitResult).action
    except msgspec.DecodeError:
        return Answer.FAILED
    return _ANSWERS.get(action, Answer.FAILED)


def _wrong(wanted: str, line: bytes) -> WrongStart:
    shown = line[:_SHOWN_BYTES].decode("utf-8", "replace") + ("…" if len(line) > _SHOWN_BYTES else "")
    return WrongStart(f"expect initialized {wanted}, but received: {shown}")
