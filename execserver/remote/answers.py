"""What a request to a JSON API gives: a whole answer, or the reason why there is none.  No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

MAX_REPLY_BYTES = 1024 * 1024
BAD_BODY = "error decoding response body"

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON of a stranger raises."""

Fields = Iterable[tuple[str, str]]


class CallFailed(Exception):
    """There is no usable answer; `cause` is the error text of the network or the peer.

    `is_transient` is False where another try cannot help.
    """

    def __init__(self, text: str, cause: str = "", *, is_transient: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.cause = cause
        self.is_transient = is_transient


class Response(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """True if the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def status_text(self) -> str:
        """The status as error texts show it, e.g. `503 Service Unavailable`."""
        from http import HTTPStatus  # late: only errors show it

        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return f"{self.status} <unknown status code>"

    def json(self) -> dict[str, object]:
        """Return the body as a JSON object.  Raises CallFailed."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, object])
        except UNREADABLE as error:
            raise CallFailed(BAD_BODY, str(error), is_transient=False) from None


def registry_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for registry and rendezvous: as at the reference, only SSL_CERT_FILE adds a CA."""
    return {name: value for name, value in environ.items() if name != "CODEX_CA_CERTIFICATE"}
