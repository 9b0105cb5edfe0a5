"""Options of the codex CLI that this program takes without an effect, or refuses: their values and texts."""

from __future__ import annotations

from execserver.arguments import Mistake
from execserver.leaving import failure

STDIN_CREDENTIALS = ("registration-bearer", "executor-credential", "chatgpt-token")
_CONCURRENCY, _NAMESPACE = "--concurrent-requests", "--linux-sandbox-pid-namespace"
_ISOLATE, INHERIT = "isolate", "inherit"


def refuse_direct(words: list[str], *, forwards: bool = False) -> None:
    """Raise Leave where the transport is asked for that only the codex CLI has."""
    is_direct = "--remote-transport=direct" in words
    if "--aws-sigv4" in words and not is_direct:
        raise failure("--aws-sigv4 requires --remote-transport direct")
    if is_direct and forwards:
        raise failure("direct exec-server transport does not support forwarding")
    if is_direct:
        raise failure(
            "`--remote-transport direct`, and with it AWS signing, is not part of this program",
            "leave it away if the registry has a relay, too; else use the codex CLI itself",
        )


def wrong_value(words: list[str]) -> Mistake | None:
    """Return what is wrong with the value of an option that takes numbers or has a text of its own."""
    values = dict(word.split("=", 1) for word in words if "=" in word)
    if (count := values.get(_CONCURRENCY)) is not None and (reason := _no_count(count)):
        return Mistake(f"invalid value '{count}' for '{_CONCURRENCY} <COUNT>': {reason}", None)
    if (mode := values.get(_NAMESPACE, _ISOLATE)) not in (_ISOLATE, INHERIT):
        reason = f"expected '{_ISOLATE}' or '{INHERIT}'"
        return Mistake(f"invalid value '{mode}' for '{_NAMESPACE} <MODE>': {reason}", None)
    return None


def _no_count(text: str) -> str:
    """Return why a text is no count of requests; "" if it is one."""
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        return "invalid digit found in string" if text else "cannot parse integer from empty string"
    if int(digits[:40]) >= 1 << 64:
        return "number too large to fit in target type"
    return "" if int(digits) else "number would be zero for non-zero type"
