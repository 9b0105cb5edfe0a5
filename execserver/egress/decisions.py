"""What is decided about a connection, in the wire contract's words (`network/policyDecision`)."""

from __future__ import annotations

import enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Action(enum.StrEnum):
    """What becomes of a connection; `ask` is a refusal that somebody could lift."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Source(enum.StrEnum):
    """Who decided."""

    BASELINE_POLICY = "baseline_policy"
    DECIDER = "decider"
    MODE_GUARD = "mode_guard"
    PROXY_STATE = "proxy_state"


class Scope(enum.StrEnum):
    """Whether the decision was about the host, or about something else."""

    DOMAIN = "domain"
    NON_DOMAIN = "non_domain"


class Protocol(enum.StrEnum):
    """How the process asked."""

    HTTP = "http"
    HTTPS_CONNECT = "https_connect"
    SOCKS5_TCP = "socks5_tcp"
    SOCKS5_UDP = "socks5_udp"


class Mode(enum.StrEnum):
    """`limited` lets only reading HTTP requests pass."""

    FULL = "full"
    LIMITED = "limited"


ALLOWED = "allow"
DENIED = "denied"
NOT_ALLOWED = "not_allowed"
NOT_ALLOWED_LOCAL = "not_allowed_local"
METHOD_NOT_ALLOWED = "method_not_allowed"
MITM_REQUIRED = "mitm_required"
POLICY_DENIED = "policy_denied"
UNIX_SOCKET_UNSUPPORTED = "unix_socket_unsupported"

_ANSWERS: Mapping[str, tuple[str, str]] = {
    DENIED: ("blocked-by-denylist", "Domain denied by the sandbox policy."),
    NOT_ALLOWED: ("blocked-by-allowlist", "Domain not in allowlist."),
    NOT_ALLOWED_LOCAL: (
        "blocked-by-allowlist",
        "Sandbox policy blocks local/private network addresses.",
    ),
    METHOD_NOT_ALLOWED: ("blocked-by-method-policy", "Method not allowed in limited mode."),
    MITM_REQUIRED: ("blocked-by-mitm-required", "MITM required for limited HTTPS."),
}
_OTHER = ("blocked-by-policy", "Request blocked by network policy.")


class Verdict:
    """One decision and its reason.

    It `allows` the connection or not.  `override`: a client allowed what the policy does not.  A refusal with
    a `note` is final: no client is asked, and the note tells the process more.  `rules` are those of the
    machine for want of which it is refused, none where they would not help.
    """

    __slots__ = ("action", "allows", "note", "override", "reason", "rules", "scope", "source")

    def __init__(
        self,
        action: Action,
        reason: str,
        source: Source = Source.BASELINE_POLICY,
        scope: Scope = Scope.DOMAIN,
        override: bool = False,
        note: str = "",
        rules: tuple[str, ...] = (),
    ) -> None:
        self.action = action
        self.allows = action is Action.ALLOW
        self.reason = reason
        self.source = source
        self.scope = scope
        self.override = override
        self.note = note
        self.rules = rules

    @property
    def error_label(self) -> str:
        """The value of `x-proxy-error`."""
        return _ANSWERS.get(self.reason, _OTHER)[0]

    @property
    def message(self) -> str:
        """What the process reads."""
        text = _ANSWERS.get(self.reason, _OTHER)[1]
        return f"{text} {self.note}" if self.note else text


ALLOW = Verdict(Action.ALLOW, ALLOWED)
BY_CLIENT = Verdict(Action.ALLOW, NOT_ALLOWED, Source.DECIDER, override=True)
REBOUND = Verdict(Action.DENY, POLICY_DENIED, scope=Scope.NON_DOMAIN)
UNIX_SOCKET = Verdict(Action.DENY, UNIX_SOCKET_UNSUPPORTED, Source.PROXY_STATE, Scope.NON_DOMAIN)


class Question:
    """Where a process wants to go; `host` is normal, and `key` is all of it."""

    __slots__ = ("host", "key", "port", "protocol")

    def __init__(self, protocol: Protocol, host: str, port: int) -> None:
        self.protocol = protocol
        self.host = host
        self.port = port
        self.key = host, port, protocol


class DecisionRecord:
    """A decision that was made, for whoever keeps count: no path, no query, no header.

    `method` is None for SOCKS; `client` is the address of the process's end of the connection.
    """

    __slots__ = ("client", "method", "question", "verdict")

    def __init__(self, verdict: Verdict, question: Question, method: str | None, client: str) -> None:
        self.verdict = verdict
        self.question = question
        self.method = method
        self.client = client
