"""What the relay answers over HTTP: registry calls, upgrades to the rendezvous, health, metrics."""

from __future__ import annotations

import json
import logging
import re
import time
from typing import NamedTuple
from urllib.parse import parse_qsl

from execserver.relay.errors import CannotServe, EngineSilent
from execserver.relay.identity import Identity
from execserver.relay.metrics import CONTENT_TYPE, Metrics
from execserver.relay.registry import ApiError, Json, Registry
from execserver.relay.rendezvous import NotAdmitted, Rendezvous
from execserver.relay.tokens import Token, Tokens
from execserver.wire import handshake
from execserver.wire.host_names import is_host, names_loopback

_log = logging.getLogger(__name__)

_CALL = re.compile(r"/cloud/environment/([A-Za-z0-9_-]{1,128})/(register|connect|validate)")
_RENDEZVOUS = re.compile(r"/rendezvous/([A-Za-z0-9_-]{1,128})")
_REASON_HEADER = "x-codex-rendezvous-rejection-reason"
_METRICS_TEXT = "metrics are told to this machine only, asked by `localhost` or a loopback address"
# A request through a proxy comes from elsewhere, even if the proxy runs on this machine.
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")

Headers = list[tuple[str, str]]


class Request(NamedTuple):
    """One whole HTTP request; header names in lower case."""

    method: str
    target: str
    headers: Headers
    body: bytes
    peer: str  # for logs
    is_local: bool  # the peer is this machine

    def values(self, name: str) -> list[str]:
        """Return every value of a header."""
        return [value for key, value in self.headers if key == name]


class Response(NamedTuple):
    """An answer; whoever sends it adds the headers for length, date and connection."""

    status: int
    body: bytes = b""
    headers: Headers = []


class Upgrade(NamedTuple):
    """The answer to an upgrade, and whose socket it is once the answer is sent."""

    data: bytes
    identity: Identity


class Shown(NamedTuple):
    """What a request shows: the token, directly or by a credential that was granted with it."""

    token_id: str | None  # None if it shows nothing valid
    entry: Identity | NotAdmitted | CannotServe | None = None  # of a rendezvous URL
    token: Token | None = None  # shown directly; as good as when it was asked for, and not for long


class Api:
    """Answers requests."""

    def __init__(
        self,
        registry: Registry,
        rendezvous: Rendezvous,
        tokens: Tokens,
        metrics: Metrics,
        *,
        base: str,
        fixed_base: bool,
        public_metrics: bool,
    ) -> None:
        """Take the parts; `base` begins the URLs that are given out, such as `wss://host:port`.

        Unless `fixed_base` is set, the host of each request replaces the host of `base`.
        """
        self._registry = registry
        self._rendezvous = rendezvous
        self._tokens = tokens
        self._metrics = metrics
        self._base = base
        self._fixed_base = fixed_base
        self._public_metrics = public_metrics

    def answer(self, request: Request, shown: Shown) -> Response | Upgrade:
        """Return the answer; blocks this greenlet while a call waits for an executor."""
        try:
            return self._answer(request, shown)
        except CannotServe as error:
            return self._unable("other", error)

    def recognize(self, request: Request) -> Shown:
        """Return what a request shows."""
        path, _, query = request.target.partition("?")
        way_in = _RENDEZVOUS.fullmatch(path)
        if way_in:
            return self._shown_by_ticket(way_in[1], query)
        try:
            token = self._token(request)
            return Shown(token.id, token=token)
        except (ApiError, CannotServe):
            return Shown(None)

    def _shown_by_ticket(self, environment_id: str, query: str) -> Shown:
        try:
            ticket, hint = _named(query, "token") or "", _named(query, "node")
            identity = self._rendezvous.admit(environment_id, ticket, hint)
            return Shown(identity.token_id, identity)
        except (NotAdmitted, CannotServe) as refused:
            return Shown(None, refused.with_traceback(None))  # which holds this frame, which holds it

    def _answer(self, request: Request, shown: Shown) -> Response | Upgrade:
        path, _, query = request.target.partition("?")
        call, way_in = _CALL.fullmatch(path), _RENDEZVOUS.fullmatch(path)
        if request.values("origin"):  # browsers send it; no web page may reach the relay
            return self._refused("other", ApiError(403, "forbidden", "requests of web pages are refused"))
        if call:
            return self._call(request, call[1], call[2], shown.token)
        if way_in:
            return self._enter(request, way_in[1], query, shown.entry)
        if path == "/readyz":
            return self._read_only(request, Response(503 if self._rendezvous.is_leaving else 200))
        if path == "/lb":
            return self._read_only(request, Response(200 if self._rendezvous.takes_new else 404))
        if path == "/metrics":
            return self._read_only(request, self._metrics_page(request))
        return self._refused("other", ApiError(404, "not_found", "there is nothing here"))

    def _call(self, request: Request, environment_id: str, name: str, shown: Token | None) -> Response:
        try:
            if request.method != "POST":
                raise ApiError(405, "method_not_allowed", "registry calls are POST requests")
            if self._rendezvous.draining:
                raise ApiError(503, "relay_draining", "this relay is shutting down")
            token = shown or self._token(request)
            body = _decoded(request.body)
            if name == "register":
                answer = self._registry.register(environment_id, token, body, self._base_for(request))
            elif name == "connect":
                answer = self._registry.connect(environment_id, token, body, self._base_for(request))
            else:
                answer = self._registry.validate(environment_id, token, body)
        except ApiError as error:
            _log.info(
                "refused: call=%s environment=%s status=%d code=%s",
                name,
                environment_id,
                error.status,
                error.code,
            )
            return self._refused(name, error)
        self._metrics.count("requests", name, "200")
        return Response(200, json.dumps(answer, separators=(",", ":")).encode(), [_JSON])

    def _token(self, request: Request) -> Token:
        given = request.values("authorization")
        scheme, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        token = self._tokens.find(text.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            raise ApiError(401, "unauthorized", "a valid token of this relay is needed, as bearer token")
        return token

    def _enter(
        self,
        request: Request,
        environment_id: str,
        query: str,
        entry: Identity | NotAdmitted | CannotServe | None,
    ) -> Response | Upgrade:
        role = "executor" if (_named(query, "token") or "").startswith("x-") else "harness"
        # The upgrade rules of the server's own port, which knows the path `/` only.
        asked = handshake.Request(request.method, "/", False, handshake.by_name(request.headers))
        decided = handshake.answer(asked, _date())
        if not decided.upgraded:
            return self._refused("rendezvous", ApiError(400, "no_websocket", "this is a WebSocket's address"))
        if isinstance(entry, Identity):
            self._metrics.count("upgrades", role, "101")
            return Upgrade(decided.data, entry)
        if not isinstance(entry, NotAdmitted):
            self._metrics.count("upgrades", role, "503")
            return self._unable("rendezvous", entry)
        self._metrics.count("upgrades", role, str(entry.status))
        _log.info("not admitted: role=%s environment=%s reason=%s", role, environment_id, entry.reason)
        refused = ApiError(entry.status, entry.reason, str(entry))
        return _error(refused, [(_REASON_HEADER, entry.reason)])

    def _unable(self, call: str, error: CannotServe | None) -> Response:
        """Answer that nothing can be said just now, which is no refusal."""
        if not isinstance(error, EngineSilent):  # which is told once, where it is noticed
            _log.error("%s", error)
        return self._refused(call, ApiError(503, "state_unavailable", "the relay cannot answer just now"))

    def _metrics_page(self, request: Request) -> Response:
        if not (self._public_metrics or _is_of_this_machine(request)):
            return _error(ApiError(403, "forbidden", _METRICS_TEXT))
        return Response(200, self._metrics.page(self._rendezvous.gauges()), [("content-type", CONTENT_TYPE)])

    def _read_only(self, request: Request, response: Response) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(405, headers=[("allow", "GET,HEAD")])
        return response

    def _refused(self, call: str, error: ApiError) -> Response:
        self._metrics.count("requests", call, str(error.status))
        return _error(error)

    def _base_for(self, request: Request) -> str:
        """Return the beginning of a rendezvous URL that works for this client: by the host it asked for."""
        hosts = request.values("host")
        if self._fixed_base or len(hosts) != 1 or not is_host(hosts[0]):
            return self._base
        return f"{self._base.partition('://')[0]}://{hosts[0]}"


def _named(query: str, name: str) -> str | None:
    """Return a value of a query, None if it is not there once: a balancer could read another one of two."""
    values = [value for key, value in parse_qsl(query) if key == name]
    return values[0] if len(values) == 1 else None


def _is_of_this_machine(request: Request) -> bool:
    """True if this machine asks, and by a loopback name: a web page can make its own name resolve here."""
    if not request.is_local or any(request.values(name) for name in _FORWARDED):
        return False
    return all(map(names_loopback, request.values("host")))


_JSON = ("content-type", "application/json")


def _error(error: ApiError, headers: Headers | None = None) -> Response:
    extra = list(headers or [])
    if error.status == 401:
        extra.append(("www-authenticate", "Bearer"))
    if error.status in (429, 503):
        extra.append(("retry-after", "1"))
    body = {"error": {"code": error.code, "message": error.message}}
    return Response(error.status, json.dumps(body).encode(), [_JSON, *extra])


def _decoded(body: bytes) -> Json:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid_request", "the body is not JSON") from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_request", "the body is not a JSON object")
    return value


def _date() -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
