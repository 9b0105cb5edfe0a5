"""The texts of UUIDs that a client may send, and what is wrong with others (wire contract, section 5).

Standard library only, pure.  A UUID is 32 hexadecimal digits, or five groups of them with hyphens between;
the groups may stand in braces or behind `urn:uuid:`.
"""

from __future__ import annotations

GROUPS = (8, 4, 4, 4, 12)
_DIGITS = sum(GROUPS)
_HYPHENATED = "-".join(f"[0-9a-fA-F]{{{length}}}" for length in GROUPS)
PATTERN = rf"^(?:[0-9a-fA-F]{{{_DIGITS}}}|(?:urn:uuid:)?{_HYPHENATED}|\{{{_HYPHENATED}\}})\Z"
_URN = "urn:uuid:"
_VERSION_4 = 4 << 76 | 2 << 62
_RANDOM_BITS = ~(0xF << 76 | 0x3 << 62)
_ALLOWED = frozenset("0123456789abcdefABCDEF-")


def version_4(random: bytes) -> str:
    """Return the UUID of 16 random bytes; six of their bits say its version and variant (RFC 9562)."""
    # A tenth of what `uuid.uuid4` takes, and nothing has to be imported for it.
    number = int.from_bytes(random, "big") & _RANDOM_BITS | _VERSION_4
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def error_text(text: str) -> str:
    """Say what is wrong with a text that is no UUID."""
    inner, offset = text, 0
    if text.startswith("{") and text.endswith("}"):
        inner, offset = text[1:-1], 1
    elif text.startswith(_URN):
        inner, offset = text.removeprefix(_URN), len(_URN)
    for index, character in enumerate(inner):
        if character not in _ALLOWED:
            place = len(inner[:index].encode("utf-8", "surrogatepass")) + offset + 1
            wanted = "an optional prefix of `urn:uuid:` followed by [0-9a-fA-F-]"
            return f"invalid character: expected {wanted}, found `{character}` at {place}"
    if "-" not in inner and not offset:
        return f"invalid length: expected length {_DIGITS} for simple format, found {len(inner)}"
    return _wrong_groups(inner.split("-"))


def _wrong_groups(groups: list[str]) -> str:
    if len(groups) != len(GROUPS):
        return f"invalid group count: expected {len(GROUPS)}, found {len(groups)}"
    last = len(GROUPS) - 1
    number = next((at for at, length in enumerate(GROUPS) if len(groups[at]) != length), last)
    return f"invalid group length in group {number}: expected {GROUPS[number]}, found {len(groups[number])}"
