"""What the head of a request to the proxy asks for; heads that come again are not read again.

A program opens its tunnels with the same few bytes each time.  What a head means follows from its bytes
alone, so the last ones are remembered: short ones, without a query, of which each field is known to hold no
credential.
"""

from __future__ import annotations

from execserver.egress.decisions import Protocol, Question
from execserver.egress.hosts import shown
from execserver.egress.http_heads import CHUNKED, NO_BODY, Body, RequestHead, parse_request, written
from execserver.egress.http_targets import BadTarget, Target, target_of
from execserver.egress.remembering import remember

_MAX_BYTES = 512
_REPEATABLE = frozenset(("GET", "HEAD", "OPTIONS"))
_PLAIN_FIELDS = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"cache-control",
        b"connection",
        b"host",
        b"pragma",
        b"proxy-connection",
        b"user-agent",
    )
)


class Asked:
    """A request, and how its body ends.  One that leads nowhere has no target, and the text of the answer."""

    __slots__ = ("_onward", "closes", "framing", "may_come_twice", "question", "refusal", "request", "target")

    def __init__(self, request: RequestHead) -> None:
        """Raises BadHead."""
        self.request = request
        self.framing: tuple[Body, int] = request.framing()
        # What is asked of each request, found once for those that come again.
        self.closes = not request.keeps_alive or request.minor == 0
        # True if a server that gets it twice does no more than with one; it has no body.
        self.may_come_twice = request.method in _REPEATABLE and self.framing[0] is NO_BODY
        self.target: Target | None = None
        self.question: Question | None = None
        self.refusal = ""
        self._onward = b""
        protocol = Protocol.HTTPS_CONNECT if request.method == "CONNECT" else Protocol.HTTP
        try:
            self.target = target_of(request)
            self.question = Question(protocol, self.target.host, self.target.port)
        except BadTarget as error:
            self.refusal = str(error)

    @property
    def onward(self) -> bytes:
        """The head of a plain request with a target, for the server it leads to."""
        if not self._onward:
            assert self.target is not None
            self._onward = self._written(self.target.path, [])
        return self._onward

    def through(self, authorization: bytes | None) -> bytes:
        """Return the same for an upstream proxy, with what it wants to hear."""
        assert self.target is not None
        host = shown(self.target.host, self.target.port).removesuffix(":80")
        more = [] if authorization is None else [(b"proxy-authorization", authorization)]
        return self._written(f"http://{host}{self.target.path}", more)

    def _written(self, place: str, more: list[tuple[bytes, bytes]]) -> bytes:
        """Return a head without what says how the body is framed by chunks, but for its own word for it."""
        request, target = self.request, self.target
        assert target is not None
        fields = request.passed_on()
        if not any(request.all(b"host")):
            fields = [field for field in fields if field[0].lower() != b"host"]
            fields.insert(0, (b"Host", shown(target.host, target.port).removesuffix(":80").encode()))
        if self.framing[0] is CHUNKED:
            fields.append((b"transfer-encoding", b"chunked"))
        return written(f"{request.method} {place} HTTP/1.1".encode(), fields + more)


class Heads:
    """Reads the heads of one process."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Asked] = {}

    def read(self, head: bytes) -> Asked:
        """Return what a complete head asks for.  Raises BadHead."""
        asked = self._known.get(head)
        if asked is None:
            asked = Asked(parse_request(head))
            if len(head) <= _MAX_BYTES and _is_plain(asked.request):
                remember(self._known, head, asked)
        return asked


def _is_plain(request: RequestHead) -> bool:
    """Return whether nothing in a request could be a secret."""
    return "?" not in request.target and all(name.lower() in _PLAIN_FIELDS for name, _ in request.fields)
