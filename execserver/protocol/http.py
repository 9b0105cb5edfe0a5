"""Params, result and notification of `http/request` (wire contract, section 13)."""

from __future__ import annotations

import enum

import msgspec

from execserver.protocol.record import U16, U64, Base64, Record, refuse_beyond_u64


class HttpHeader(Record, frozen=True, kw_only=True):
    """One header line; order and repeats are kept.

    In a request `value_env_var` names a variable of the server whose value is sent instead of `value`;
    results do not have the member.
    """

    name: str
    value: str
    value_env_var: str | msgspec.UnsetType | None = msgspec.UNSET


class HttpRedirectPolicy(enum.Enum):
    """What to do with a redirect: follow it (at most 10), or hand it to the client."""

    FOLLOW = "follow"
    STOP = "stop"


class HttpRequestParams(Record, frozen=True, kw_only=True):
    """The request to make from this machine; `timeout_ms` covers the body too, None is no limit."""

    method: str
    url: str
    headers: tuple[HttpHeader, ...] = ()
    body_base64: Base64 | None = None
    timeout_ms: U64 | None = None
    request_id: str
    stream_response: bool = False
    redirect_policy: HttpRedirectPolicy = HttpRedirectPolicy.FOLLOW

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.timeout_ms)


class HttpRequestResponse(Record, frozen=True, kw_only=True):
    """The answer of the other server; the body is empty when it is streamed."""

    status: U16
    headers: tuple[HttpHeader, ...]
    body_base64: Base64


class HttpRequestBodyDeltaNotification(Record, frozen=True, kw_only=True):
    """One piece of a streamed body; the last one is empty and says `done`, with `error` if it was cut."""

    request_id: str
    seq: U64
    delta_base64: Base64
    done: bool
    error: str | None = None
