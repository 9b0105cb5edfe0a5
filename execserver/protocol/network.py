"""The network proxy of a process: its settings, decisions and questions (wire contract, section 8.9)."""

from __future__ import annotations

import enum

import msgspec

from execserver.protocol.record import U16, U64, Record, refuse_beyond_u64


class NetworkMode(enum.Enum):
    """`limited` lets only reading HTTP requests pass."""

    LIMITED = "limited"
    FULL = "full"


class DomainPermission(enum.Enum):
    """What a pattern of hosts means; `none` is as if it were not there."""

    NONE = "none"
    ALLOW = "allow"
    DENY = "deny"


class UnixSocketPermission(enum.Enum):
    """Whether a socket may be reached; on Linux none can."""

    ALLOW = "allow"
    DENY = "deny"


class CredentialAuth(enum.Enum):
    """How a credential is sent: three ways in `Authorization`, or in a header of its provider's own."""

    BEARER = "bearer"
    TOKEN = "token"
    BASIC = "basic"
    HEADER = "header"


class CredentialProviderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of credentials: in which variables, of what shape, and where they may go."""

    env: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    url_prefixes: tuple[str, ...] = ()
    url_prefix_from_env: str | None = None
    auth: tuple[CredentialAuth, ...] = ()
    header: str | None = None
    prefix: str | None = None


class NetworkProxyConfig(Record, frozen=True, kw_only=True):
    """Which hosts a process may reach, and how its proxy behaves."""

    enabled: bool
    enable_socks5: bool
    enable_socks5_udp: bool
    allow_upstream_proxy: bool
    dangerously_allow_all_unix_sockets: bool
    mode: NetworkMode
    domains: dict[str, DomainPermission] | None = None
    unix_sockets: dict[str, UnixSocketPermission] | None = None
    allow_local_binding: bool
    review_domains: tuple[str, ...] = ()
    credential_masking: bool = False
    credential_providers: dict[str, CredentialProviderConfig] = msgspec.field(default_factory=dict)


class NetworkAuditMetadata(Record, frozen=True, kw_only=True):
    """What a start belongs to, for the client's own records; it changes nothing."""

    conversation_id: str | None = None
    app_version: str | None = None
    user_account_id: str | None = None
    auth_mode: str | None = None
    originator: str | None = None
    user_email: str | None = None
    terminal_type: str | None = None
    model: str | None = None
    slug: str | None = None


class NetworkProxyLaunch(Record, frozen=True, kw_only=True):
    """A proxy for one process; with a time limit the client is asked about hosts that no rule allows."""

    proxy: NetworkProxyConfig
    audit_metadata: NetworkAuditMetadata = NetworkAuditMetadata()
    environment_id: str | None = None
    execution_id: str | None = None
    policy_decision_timeout_ms: U64 | None = None

    def __post_init__(self) -> None:
        refuse_beyond_u64(self.policy_decision_timeout_ms)


class NetworkPolicyDecisionNotification(Record, frozen=True, kw_only=True):
    """A decision of a process's proxy; `method` is left out where there is none (SOCKS)."""

    process_id: str
    timestamp: str
    scope: str
    decision: str
    source: str
    reason: str
    protocol: str
    host: str
    port: U16
    method: str | msgspec.UnsetType = msgspec.UNSET
    client: str
    policy_override: bool


class NetworkPolicyDestination(Record, frozen=True, kw_only=True):
    """Where a process wants to go."""

    protocol: str
    host: str
    port: U16


class NetworkPolicyRequestParams(Record, frozen=True, kw_only=True):
    """May this process connect to this host?"""

    process_id: str
    request: NetworkPolicyDestination


class NetworkPolicyDecisionAnswer(Record, frozen=True, kw_only=True):
    """`type` is `allow`, `deny` or `ask`; the last two have a reason."""

    type: str
    reason: str | None = None


class NetworkPolicyResponse(Record, frozen=True, kw_only=True):
    """The client's answer."""

    decision: NetworkPolicyDecisionAnswer
