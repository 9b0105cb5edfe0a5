"""One client's access to an executor behind a relay: address, token, keys, and whom it has found there.

Sockets are the owner's.  The keys live as long as the client.  The executor's key is taken from the
registry's first answer and must stay the same, because a session exists in one executor process only.  Every
attempt asks the registry again, since its answer is valid for one attempt (wire contract, remote mode).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from uuid import uuid4
from zlib import crc32

from cryptography.exceptions import UnsupportedAlgorithm

from execserver.client.errors import (
    ConnectFailed,
    RegistryRefused,
    RemoteConfigurationError,
    RemoteModeUnavailable,
)
from execserver.client.options import RemoteExecServerConnectArgs
from execserver.remote.addresses import checked_base_url, checked_environment_id
from execserver.remote.errors import ConfigurationError, RemoteError
from execserver.remote.registry_answers import Bundle
from execserver.wire.noise import EntropyAhead
from execserver.wire.noise_keys import StaticKeys
from execserver.wire.relay_frames import RESET_CLOSED, RelayFrame, Reset, encode_frame
from execserver.wire.relay_stream import HarnessStream, Route, StreamError

MAX_ABANDONED: Final = 8
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
JITTER: Final = 0.5


class RelayAccess:
    """What the connections of one client to one environment have in common."""

    def __init__(self, args: RemoteExecServerConnectArgs) -> None:
        """Check the arguments, make keys.  Raises `RemoteConfigurationError` or `RemoteModeUnavailable`."""
        try:
            self.base_url = checked_base_url(args.url)
            self.environment_id = checked_environment_id(args.environment_id)
        except ConfigurationError as error:
            raise RemoteConfigurationError(error.text) from error
        self.headers = [("authorization", f"Bearer {args.token}")]
        if args.account_id is not None:
            self.headers.append(("chatgpt-account-id", args.account_id))
        try:
            self.keys = StaticKeys.generate()
        except UnsupportedAlgorithm as error:
            raise RemoteModeUnavailable(
                f"this build of `cryptography` lacks an algorithm: {error}"
            ) from error
        self._entropy = EntropyAhead()
        self._ready: tuple[Bundle, HarnessStream] | None = None
        self._abandoned: deque[str] = deque(maxlen=MAX_ABANDONED)
        self._known: Bundle | None = None

    def accept(self, bundle: Bundle) -> Bundle:
        """Return what the registry answered if it leads to the same executor as before.

        Raises `RegistryRefused`.
        """
        if self._known is not None and bundle.executor_key != self._known.executor_key:
            raise RegistryRefused("another executor has taken over; sessions do not move there")
        self._known = bundle
        return bundle

    def refused(self, error: RemoteError) -> ConnectFailed | RegistryRefused:
        """Return what an error of the registry means: only `ConnectFailed` may pass."""
        # A relay that was restarted may not know the environment until its executor has registered again.
        text = f"{error.text}: {error.cause}" if error.cause else error.text
        if error.is_transient or (self._known is not None and error.is_unknown):
            return ConnectFailed(text)
        return RegistryRefused(text)

    def make_keys_ahead(self) -> None:
        """Make the keys of the next stream, for which nobody waits yet."""
        self._entropy.make_ahead()

    def make_stream_ahead(self, bundle: Bundle, now: float) -> None:
        """Make the stream that `open_stream` will return, if one can be made."""
        with suppress(RegistryRefused):  # it is raised by `open_stream`
            self._ready = bundle, self.open_stream(bundle, now)

    def open_stream(self, bundle: Bundle, now: float) -> HarnessStream:
        """Begin a stream.  Raises `RegistryRefused` for an authorization that cannot be sent."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] is bundle:
            return ready[1]
        route = Route(
            bundle.environment_id, bundle.registration_id, bundle.executor_key, bundle.authorization
        )
        try:
            return HarnessStream(str(uuid4()), self.keys, route, now, entropy=self._entropy)
        except StreamError as error:
            raise RegistryRefused(f"the registry's authorization cannot be used: {error}") from error

    def abandon(self, stream: HarnessStream) -> None:
        """Have the next connection report to the executor that a stream will not be resumed."""
        if stream.may_be_kept and stream.stream_id not in self._abandoned:
            self._abandoned.append(stream.stream_id)

    def farewells(self) -> Iterator[bytes]:
        """Yield the frames that report abandoned streams; each counts as sent when the next is asked for.

        They go out before anything else: each such stream takes one of the executor's places until then.
        """
        while self._abandoned:
            yield encode_frame(RelayFrame(self._abandoned[0], Reset(RESET_CLOSED)))
            self._abandoned.popleft()

    def pauses(self) -> Iterator[float]:
        """Yield the pauses between attempts to recover: 0.5 s doubling to 5 s, each up to a half longer."""
        # The contract's jitter is deterministic; the key makes it differ between clients.
        pause, attempt = FIRST_PAUSE_S, 0
        while True:
            part = crc32(b"%b%d" % (self.keys.public.x25519, attempt)) / 2**32
            yield pause * (1 + JITTER * part)
            pause, attempt = min(2 * pause, LONGEST_PAUSE_S), attempt + 1
