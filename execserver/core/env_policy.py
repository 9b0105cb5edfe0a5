"""The environment of a command: which of the server's variables a client's policy lets through.

Wire contract, section 8.1, `envPolicy`.  A command never inherits the server's own credentials, whatever the
policy says; a client that wants a variable of such a name sets it in `set` or `env`.

Names and values are bytes, as in the operating system; patterns are matched against the text of a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from execserver.protocol.errors import InvalidRequest
from execserver.protocol.process import ExecEnvPolicy, ExecEnvPolicyInherit
from execserver.wildcards import Wildcards

SERVER_CREDENTIALS = (
    b"CODEX_API_KEY",
    b"CODEX_ACCESS_TOKEN",
    b"CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN",
    b"CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
)

_CORE_NAMES = frozenset(
    ["PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER"]
)
_NOTHING: Mapping[bytes, bytes] = {}
_DEFAULT_EXCLUDES = ("*KEY*", "*SECRET*", "*TOKEN*")
# Characters of all patterns times those of all names: mostly below 0.1 s, some 0.4 s with costly ones; others
# wait meanwhile.  300 patterns and 300 variables, or 60 and those of 200 Kubernetes services, stay below.
MAX_MATCHING = 200_000_000
_EACH = 16  # characters that a name or pattern counts for besides its own: each pair has a cost of its own


def child_environment(
    inherited: Mapping[bytes, bytes],
    policy: ExecEnvPolicy | None,
    env: Mapping[str, str],
    exports: Mapping[bytes, bytes] = _NOTHING,
) -> dict[bytes, bytes]:
    """Return the variables of a command: what the policy makes of `inherited`, overridden by `env`.

    Raises InvalidRequest for patterns that would take long.  Without a policy the command gets `env` alone.
    `env` is never filtered.  `exports` are what the start-up files of a shell set: they replace inherited
    variables, and pass the same filters.
    """
    variables = dict(exports) if policy is None else _apply(policy, inherited, exports)
    variables.update(_encoded(env))
    return variables


def _apply(
    policy: ExecEnvPolicy, inherited: Mapping[bytes, bytes], exports: Mapping[bytes, bytes]
) -> dict[bytes, bytes]:
    """Apply the steps of a policy in the contract's order."""
    variables = _inherit(policy.inherit, inherited)
    variables.update(exports)
    if not policy.ignore_default_excludes:
        _drop(variables, _DEFAULT_EXCLUDES)
    _drop(variables, policy.exclude)
    variables.update(_encoded(policy.set))
    if policy.include_only:
        kept = _matching(variables, policy.include_only)
        variables = {name: variables[name] for name in kept}
    return variables


def _inherit(inherit: ExecEnvPolicyInherit, inherited: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    if inherit is ExecEnvPolicyInherit.NONE:
        return {}
    if inherit is ExecEnvPolicyInherit.CORE:
        return {name: value for name, value in inherited.items() if _text(name).upper() in _CORE_NAMES}
    variables = dict(inherited)
    for name in SERVER_CREDENTIALS:
        variables.pop(name, None)
    return variables


def _drop(variables: dict[bytes, bytes], patterns: Iterable[str]) -> None:
    for name in _matching(variables, patterns):
        del variables[name]


def _matching(variables: Mapping[bytes, bytes], patterns: Iterable[str]) -> list[bytes]:
    patterns = [pattern.lower() for pattern in patterns]
    if not patterns:
        return []
    names = {name: _text(name).lower() for name in variables}
    if _size(patterns) * _size(names.values()) > MAX_MATCHING:
        raise InvalidRequest("envPolicy has too many or too long patterns for so many variables")
    wildcards = [Wildcards(pattern) for pattern in patterns]
    return [name for name, text in names.items() if any(each.matches(text) for each in wildcards)]


def _size(texts: Collection[str]) -> int:
    return sum(map(len, texts)) + _EACH * len(texts)


def _encoded(variables: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in variables.items()}


def _text(name: bytes) -> str:
    """Return a name as text for matching, in UTF-8: the locale of the server means nothing to a client."""
    return name.decode("utf-8", "surrogateescape")
