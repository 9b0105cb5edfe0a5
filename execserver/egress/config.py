"""From the wire contract's proxy settings to the policy of a process, with its texts for mistakes."""

from __future__ import annotations

from execserver.egress.patterns import ConfigError, Pattern, denying
from execserver.egress.policy import Rule, RuleSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Patterns with a wildcard are looked at one by one, for each connection.
MAX_DOMAINS = 10_000
MAX_WILDCARDS = 1000
NOT_ENABLED = "executor-local network proxy launch requires an enabled proxy"


def domain_rules(allowed: Iterable[str], denied: Iterable[str] = (), reviewed: Iterable[str] = ()) -> RuleSet:
    """Return the rules of lists of patterns.  Raises ConfigError."""
    denied, allowed, reviewed = list(denied), list(allowed), list(reviewed)
    if len(denied) + len(allowed) + len(reviewed) > MAX_DOMAINS:
        raise ConfigError(f"more than {MAX_DOMAINS} domains")
    deny = [Rule(denying(text)) for text in denied]
    allow = [Rule(Pattern(text)) for text in allowed]
    review = [Rule(Pattern(text)) for text in reviewed]
    if sum(rule.pattern.exact is None for rule in (*deny, *allow, *review)) > MAX_WILDCARDS:
        raise ConfigError(f"more than {MAX_WILDCARDS} domains with a wildcard")
    return RuleSet(allow, deny, review)


def check_unix_sockets(permissions: Mapping[str, bool]) -> None:
    """Refuse paths that could not be allowed; `permissions` tells for each path whether it is.

    No socket is ever reached through the proxy here, so nothing comes of them.  Raises ConfigError.
    """
    allowed = sorted(path for path, is_allowed in permissions.items() if is_allowed)
    for index, path in enumerate(allowed):
        if not path.startswith("/") or "\0" in path:
            shown = path.replace("\\", "\\\\").replace('"', '\\"')
            raise ConfigError(
                f"invalid network.allow_unix_sockets[{index}]: "
                f'expected a NUL-free absolute path for Linux, got "{shown}"'
            )
