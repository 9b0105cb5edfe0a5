"""The limits of a relay: name, default, reason.  Per environment unless the name says otherwise.

Six are options of the command line (`streams`, `harnesses`, `bytes_per_s`, `connections`, `drain_s`,
`grace_s`); the others are fixed.  Tests shorten them by the variable EXECSERVER_RELAY_LIMITS (a JSON object),
which is no public interface.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

OVERRIDE_VARIABLE = "EXECSERVER_RELAY_LIMITS"

_KIB = 1024
_MIB = 1024 * 1024


class LimitError(ValueError):
    """An override names an unknown limit, or its value is no number."""


class Limits(NamedTuple):
    """The values one relay runs with."""

    frame_bytes: int = 256 * _KIB  # of one frame and of one message; both ends have the same limit
    stream_id_bytes: int = 120  # of one stream id; real ones have 36
    streams: int = 128  # open at a time; an executor takes no more either
    harnesses: int = 64  # WebSockets of harnesses at a time
    bytes_per_s: int = 64 * _MIB  # both directions together, with one second's worth at once; 0: no limit
    calls_per_s: int = 50  # registry calls, with four seconds' worth at once
    grants: int = 256  # connections granted and not used up; the oldest goes for a further one
    superseded_keys: int = 256  # remembered keys that must not come back
    connections: int = 20_000  # of the whole relay, upgraded or not
    queue_bytes: int = 256 * _KIB  # waiting for one WebSocket from one sender, which is not read above it
    stalled_s: float = 20.0  # a WebSocket that lets no sender go on for so long is closed
    resume_grace_s: float = 30.0  # a stream keeps its id for so long after its WebSocket was lost
    grant_ttl_s: float = 60.0  # a granted connection must be made by then
    connect_wait_s: float = 4.0  # a harness's call waits for an executor that is registered but away
    ping_s: float = 30.0  # between two pings; a peer that is silent for two of them is gone
    unauthenticated_s: float = 5.0  # without a token: for TLS and a whole request, and between two requests
    request_timeout_s: float = 10.0  # for a whole request with a token, and for taking an answer
    keep_alive_s: float = 120.0  # a connection that showed a token may rest for so long
    close_timeout_s: float = 5.0  # for the close handshake
    drain_s: float = 5.0  # between the signal to end and the shutdown notice
    body_bytes: int = 16 * _KIB  # of one request
    invalid_frames: int = 64  # of one WebSocket; then it is closed
    token_check_s: float = 2.0  # between two checks of the token file for changes
    # With an engine that several relays share:
    lease_s: float = 3.0  # for so long the others count on a node that says nothing
    beat_s: float = 1.0  # between two renewals of the lease
    isolation_s: float = 30.0  # without a lease; then a node sends its idle executors to others
    grace_s: float = 900.0  # without a lease; then it ends everything, since tokens may have been revoked
    away_s: float = 5.0  # harnesses wait for so long where their executor was; then they are sent away
    balancer_s: float = 1.0  # a balancer has noticed by then that a node drains

    def changed_by(self, environment: Mapping[str, str]) -> Limits:
        """Return these limits as EXECSERVER_RELAY_LIMITS changes them.  Raises LimitError."""
        text = environment.get(OVERRIDE_VARIABLE)
        if not text:
            return self
        try:
            overrides = json.loads(text)
        except ValueError as error:
            raise LimitError(f"{OVERRIDE_VARIABLE} is not JSON: {error}") from None
        for name, value in overrides.items():
            if name not in self._fields or not isinstance(value, int | float):
                raise LimitError(f"{OVERRIDE_VARIABLE}: {name} is no limit, or {value!r} no number")
        return self._replace(**overrides)


class Bucket:
    """A token bucket of `size`, refilled by `per_s` a second.  Times are arguments, in seconds."""

    __slots__ = ("_at", "_left", "_per_s", "_size")

    def __init__(self, per_s: float, size: float, now: float) -> None:
        self._per_s = per_s
        self._size = size
        self._left = size
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take an amount that was used already; return the seconds to wait before more is used, or 0."""
        self._left = min(self._size, self._left + (now - self._at) * self._per_s) - amount
        self._at = now
        return -self._left / self._per_s if self._left < 0 else 0.0

    def allows(self, now: float) -> bool:
        """Take one if it is there; return whether it was."""
        self._left = min(self._size, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
