"""Credentials that whoever starts the executor writes to its stdin: what is read, and how it is told wrong.

No I/O and no clock here: `feed` gets what has come, `end` tells of the end of the input.  Both raise
SignInError, whose texts are the contract's and never hold a part of the secret.  Nothing is kept beyond the
limit of one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from execserver.remote.auth.kinds import Auth, BearerAuth, Fields
from execserver.remote.auth.tokens import BadToken, unverified_claims
from execserver.remote.errors import SignInError

if TYPE_CHECKING:
    from execserver.handover.records import PackedInputCredential

BEARER, EXECUTOR, CHATGPT = "registration-bearer", "executor-credential", "chatgpt-token"
MAX_LINE_BYTES = 16 * 1024  # with its line end
MAX_FRAME_BYTES = 16 * 1024
MAX_CHATGPT_BYTES = 64 * 1024
_VISIBLE = re.compile(rb"[\x21-\x7e]+")
_ACCOUNT_ID = re.compile(r"[\x21-\x7e]{1,256}")
_CLAIMS = "https://api.openai.com/auth"


class StdinCredential(Protocol):
    """One kind of credential on stdin; `auth` is what signs requests, None until it has come."""

    auth: Auth | None
    ends_with_input: bool  # the end of the input is the end of the program

    def feed(self, data: bytes) -> None:
        """Take what has come.  Raises SignInError for what is wrong."""

    def end(self) -> None:
        """Take the end of the input.  Raises SignInError where more was needed."""

    def pack(self) -> PackedInputCredential:
        """Return what `restore` takes."""

    def restore(self, packed: PackedInputCredential) -> None:
        """Become what was packed; called on a new one."""


class _Line:
    """Collects the first line of an input; what comes behind it is ignored."""

    ends_with_input = False

    def __init__(self, most_bytes: int, incomplete: str) -> None:
        self.auth: Auth | None = None
        self._most_bytes = most_bytes
        self._incomplete = incomplete
        self._held = bytearray()
        self._token = b""

    def feed(self, data: bytes) -> None:
        if self.auth is not None:
            return
        self._held += data[: self._most_bytes + 1]
        line, newline, _ = bytes(self._held).partition(b"\n")
        if len(line) + 1 > self._most_bytes:
            raise SignInError(self._incomplete)
        if newline:
            self._held.clear()
            token = line.removesuffix(b"\r")
            self.auth = self._accept(token)
            self._token = token

    def end(self) -> None:
        if self.auth is None:
            raise SignInError(self._incomplete)

    def pack(self) -> PackedInputCredential:
        from execserver.handover.records import PackedInputCredential  # late: few hand over

        return PackedInputCredential(bytes(self._held), self._token.decode(), 0)

    def restore(self, packed: PackedInputCredential) -> None:
        self._held += packed.held
        self._token = packed.token.encode()
        if self._token:
            self.auth = self._accept(self._token)

    def _accept(self, line: bytes) -> Auth:
        raise NotImplementedError


class RegistrationBearer(_Line):
    """`--registration-bearer-stdin`: one line, a bearer token."""

    def __init__(self) -> None:
        text = "expected a newline-terminated registration bearer of at most 16 KiB"
        super().__init__(MAX_LINE_BYTES, text)

    def _accept(self, line: bytes) -> Auth:
        if not _VISIBLE.fullmatch(line):
            raise SignInError("invalid registration bearer")
        return BearerAuth(line.decode(), "", is_fedramp=False, described="registration bearer from stdin")


class ChatGptToken(_Line):
    """`--chatgpt-token-stdin`: one line, a JWT whose claims name the account."""

    def __init__(self, account_id: str | None) -> None:
        """`account_id` is what the command line names.  Raises SignInError."""
        super().__init__(MAX_CHATGPT_BYTES, "expected a bounded, newline-terminated ChatGPT access token")
        if account_id is not None and not _ACCOUNT_ID.fullmatch(account_id):
            raise SignInError("invalid ChatGPT account ID")
        self._account_id = account_id

    def _accept(self, line: bytes) -> Auth:
        if not _VISIBLE.fullmatch(line):
            raise SignInError("invalid ChatGPT access token")
        token = line.decode()
        try:
            claims = unverified_claims(token).get(_CLAIMS)
        except BadToken:
            raise SignInError("invalid ChatGPT access token") from None
        account = claims.get("chatgpt_account_id") if isinstance(claims, dict) else None
        if not isinstance(account, str) or not account:
            if self._account_id is None:
                raise SignInError("token has no ChatGPT account ID; supply --chatgpt-account-id")
            # The reference asks the vendor's service about the account here, with calls that are not known.
            raise SignInError("could not load ChatGPT account policy")
        if not _ACCOUNT_ID.fullmatch(account):
            raise SignInError("invalid ChatGPT access token")
        if self._account_id not in (None, account):
            raise SignInError("--chatgpt-account-id does not match the token")
        return BearerAuth(token, account, is_fedramp=False, described="ChatGPT token from stdin")


class _Frame(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    environment_id: str
    token: str
    expires_at: int


class ExecutorCredential:
    """`--executor-credential-stdin`: frames, each of which takes the place of the one before."""

    ends_with_input = True
    is_api_key = False
    may_wait = False
    described = "executor credential from stdin"

    def __init__(self, environment_id: str, now: Callable[[], float], learn: Callable[[str], object]) -> None:
        """`now` returns the time in seconds since 1970; `learn` is told of every token, as a secret."""
        self.auth: Auth | None = None
        self._environment_id = environment_id
        self._now = now
        self._learn = learn
        self._held = bytearray()
        self._token = ""
        self._expires_at = 0

    @property
    def secrets(self) -> tuple[str, ...]:
        """The token of now."""
        return (self._token,)

    def feed(self, data: bytes) -> None:
        """Take frames; the last one counts."""
        self._held += data
        while (at := self._held.find(b"\n")) >= 0:
            if at >= MAX_FRAME_BYTES:
                break
            line = bytes(self._held[:at])
            del self._held[: at + 1]
            self._accept(line)
        if len(self._held) >= MAX_FRAME_BYTES:
            raise SignInError("exec-server executor credential frame exceeds the size limit")

    def end(self) -> None:
        """Refuse a frame without its line end."""
        if self._held:
            raise SignInError("invalid exec-server executor credential frame")

    def pack(self) -> PackedInputCredential:
        """See `StdinCredential`."""
        from execserver.handover.records import PackedInputCredential

        return PackedInputCredential(bytes(self._held), self._token, self._expires_at)

    def restore(self, packed: PackedInputCredential) -> None:
        """See `StdinCredential`."""
        self._held += packed.held
        if packed.token:
            self._take(packed.token, packed.expires_at)

    def pack_sign_in(self) -> None:
        """See `Auth`: `pack` has it."""

    def headers(self) -> Fields:
        """Return the `authorization` header.  Raises SignInError once the credential has expired."""
        if self._expires_at <= self._now():
            raise SignInError(
                "environment registry authentication error: environment registry authentication failed: "
                "request auth build error: exec-server executor credential is expired"
            )
        return [("authorization", f"Bearer {self._token}")]

    def _accept(self, line: bytes) -> None:
        try:
            frame = msgspec.json.decode(line, type=_Frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SignInError("invalid exec-server executor credential frame") from None
        token = frame.token.encode("utf-8", "replace")
        if frame.version != 1 or not _VISIBLE.fullmatch(token):
            raise SignInError("invalid exec-server executor credential frame")
        if frame.environment_id != self._environment_id:
            raise SignInError("exec-server executor credential is for a different environment")
        if frame.expires_at <= self._now():
            raise SignInError("exec-server executor credential is expired")
        self._take(frame.token, frame.expires_at)

    def _take(self, token: str, expires_at: int) -> None:
        self._learn(token)
        self._token, self._expires_at = token, expires_at
        self.auth = self
