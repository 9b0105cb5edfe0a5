"""Hosts of URLs: checked and normalised by the URL standard.

A path with a host is never native here, so this only decides which error a client gets.  International names
go through an approximation of UTS 46 with the standard library's Unicode tables (wire contract, section 11).
Standard library only; imported when the first host is met.
"""

from __future__ import annotations

import unicodedata

from execserver.protocol.errors import InvalidParams
from execserver.protocol.percent import percent_decode

_SPECIAL = frozenset({"http", "https", "ws", "wss", "ftp"})
_FORBIDDEN_IN_HOST = frozenset("\0\t\n\r #/:<>?@[\\]^|")
_FORBIDDEN_IN_DOMAIN = _FORBIDDEN_IN_HOST | frozenset("%\x7f") | frozenset(map(chr, range(0x20)))
_HEX = frozenset("0123456789abcdef")
_OCTAL = frozenset("01234567")
_DECIMAL = frozenset("0123456789")

_BAD_NAME = "invalid international domain name"
_BAD_IPV4 = "invalid IPv4 address"
_BAD_IPV6 = "invalid IPv6 address"
_BAD_PORT = "invalid port number"
_EMPTY = "empty host"

_KEPT_BY_MAPPING = frozenset("ßς\u200c\u200d")  # case folding would change them; UTS 46 keeps them
_IGNORED = frozenset("\u00ad\u034f\u180b\u180c\u180d\u180f\u200b\u2060\u2064\ufeff") | frozenset(
    map(chr, range(0xFE00, 0xFE10))
)
_DOTS = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})


class _Bad(ValueError):
    """A host is refused; the text is the reason, in the words of the URL parser."""


def parse_file_host(authority: str) -> str:
    """Return the normalised host of a `file:` URL, empty for localhost; raise InvalidParams."""
    try:
        host = _parse_host(authority)
    except _Bad as reason:
        raise InvalidParams(f"invalid URI: {reason}") from None
    return "" if host == "localhost" else host


def check_other_url(scheme: str, rest: str) -> None:
    """Raise InvalidParams for an invalid URL of another scheme."""
    try:
        if scheme in _SPECIAL:
            _check_authority(rest.replace("\\", "/").lstrip("/"), special=True)
        elif rest.startswith("//"):
            _check_authority(rest[2:], special=False)
    except _Bad as reason:
        raise InvalidParams(f"invalid URI: {reason}") from None


def _check_authority(rest: str, special: bool) -> None:
    for end in "/?#":
        rest = rest.partition(end)[0]
    _, at, host = rest.rpartition("@")
    host, port = _split_port(host)
    if not host and (special or at or port is not None):
        raise _Bad(_EMPTY)
    if special or host.startswith("["):
        _parse_host(host)
    elif not _FORBIDDEN_IN_HOST.isdisjoint(host):
        raise _Bad("invalid domain character")
    if port and (not _DECIMAL.issuperset(port) or int(port[:10]) > 65535):
        raise _Bad(_BAD_PORT)


def _split_port(host: str) -> tuple[str, str | None]:
    """Return host and port, None without one; a colon inside brackets belongs to the host."""
    if host.startswith("["):
        address, bracket, port = host.partition("]")
        if port and not port.startswith(":"):
            return host, None
        return address + bracket, port[1:] if port else None
    name, colon, port = host.partition(":")
    return name, port if colon else None


def _parse_host(text: str) -> str:
    if text.startswith("["):
        if not text.endswith("]"):
            raise _Bad(_BAD_IPV6)
        return f"[{_parse_ipv6(text[1:-1])}]"
    domain = _to_ascii(percent_decode(text).decode("utf-8", "replace"))
    if not domain:
        raise _Bad(_EMPTY)
    return _parse_ipv4(domain) if _ends_in_number(domain) else domain


def _parse_ipv6(text: str) -> str:
    """Return the shortest spelling of an address: `::` replaces the first of the longest runs of zeros."""
    import socket

    try:
        packed = socket.inet_pton(socket.AF_INET6, text)
    except (OSError, ValueError):
        raise _Bad(_BAD_IPV6) from None
    groups = [f"{packed[i] << 8 | packed[i + 1]:x}" for i in range(0, 16, 2)]
    for length in range(8, 1, -1):
        for start in range(9 - length):
            if all(group == "0" for group in groups[start : start + length]):
                return ":".join(groups[:start]) + "::" + ":".join(groups[start + length :])
    return ":".join(groups)


def _ends_in_number(domain: str) -> bool:
    labels = domain.split(".")
    if not labels[-1] and len(labels) > 1:
        labels.pop()
    last = labels[-1]
    if last and _DECIMAL.issuperset(last):
        return True
    return last.startswith("0x") and _HEX.issuperset(last[2:])


def _parse_ipv4(domain: str) -> str:
    labels = domain.split(".")
    if not labels[-1]:
        labels.pop()
    if len(labels) > 4:
        raise _Bad(_BAD_IPV4)
    numbers = [_parse_number(label) for label in labels]
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= 256 ** (5 - len(numbers)):
        raise _Bad(_BAD_IPV4)
    address = numbers[-1]
    for index, number in enumerate(numbers[:-1]):
        address += number << (8 * (3 - index))
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


def _parse_number(label: str) -> int:
    """Return one part of a numeric host: decimal, octal after `0`, hexadecimal after `0x`."""
    if label.startswith("0x"):
        digits, base, allowed = label[2:], 16, _HEX
    elif len(label) > 1 and label.startswith("0"):
        digits, base, allowed = label[1:], 8, _OCTAL
    else:
        digits, base, allowed = label, 10, _DECIMAL
    if not label or not allowed.issuperset(digits):
        raise _Bad(_BAD_IPV4)
    # With more digits than any address has it is too large; no need to build a huge integer.
    return int(digits or "0", base) if len(digits.lstrip("0")) <= 12 else 1 << 40


def _to_ascii(domain: str) -> str:
    if domain.isascii():
        domain = domain.lower()
        labels = domain.split(".")
    else:
        domain = _map(domain)
        labels = domain.split(".")
    if not _FORBIDDEN_IN_DOMAIN.isdisjoint(domain):
        raise _Bad(_BAD_NAME)
    shown = [_decode_label(label) for label in labels]
    if not all(map(str.isascii, shown)):
        _check_labels(shown)
    return ".".join([label if label.isascii() else "xn--" + _punycode(label) for label in shown])


def _map(domain: str) -> str:
    mapped = []
    for character in domain.translate(_DOTS):
        if character in _KEPT_BY_MAPPING:
            mapped.append(character)
        elif character not in _IGNORED:
            mapped.append(unicodedata.normalize("NFKC", character.casefold()).casefold())
    return unicodedata.normalize("NFC", "".join(mapped)).translate(_DOTS)


def _decode_label(label: str) -> str:
    """Return the Unicode form of a label; that of an `xn--` label must not be ASCII."""
    if not label.startswith("xn--"):
        return label
    try:
        shown = label[4:].encode("ascii").decode("punycode")
    except (UnicodeError, OverflowError, ValueError):
        raise _Bad(_BAD_NAME) from None
    if shown.isascii() or _map(shown) != shown:
        raise _Bad(_BAD_NAME)
    return shown


def _punycode(label: str) -> str:
    return label.encode("punycode").decode("ascii")


def _check_labels(labels: list[str]) -> None:
    right_to_left = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for label in labels for c in label)
    for label in labels:
        if label and unicodedata.category(label[0]).startswith("M"):
            raise _Bad(_BAD_NAME)
        for index, character in enumerate(label):
            if not _is_allowed(character, label[index - 1] if index else ""):
                raise _Bad(_BAD_NAME)
        if right_to_left and label and not _follows_bidi_rule(label):
            raise _Bad(_BAD_NAME)


def _is_allowed(character: str, before: str) -> bool:
    if character in "\u200c\u200d":
        return bool(before) and unicodedata.combining(before) == 9  # joiners only after a virama
    if character == "\ufffd":  # from bytes that are not UTF-8
        return False
    # Unassigned, private, surrogates, controls, format characters and separators are in no name.
    return unicodedata.category(character) not in {"Cn", "Co", "Cs", "Cc", "Cf", "Zs", "Zl", "Zp"}


_LTR_ALLOWED = frozenset({"L", "EN", "ES", "CS", "ET", "ON", "BN", "NSM"})
_RTL_ALLOWED = frozenset({"R", "AL", "AN", "EN", "ES", "CS", "ET", "ON", "BN", "NSM"})


def _follows_bidi_rule(label: str) -> bool:
    kinds = [unicodedata.bidirectional(character) for character in label]
    while kinds and kinds[-1] == "NSM":
        kinds.pop()
    if kinds and kinds[0] == "L":
        return _LTR_ALLOWED.issuperset(kinds) and kinds[-1] in ("L", "EN")
    if not kinds or kinds[0] not in ("R", "AL"):
        return False
    mixed_digits = "EN" in kinds and "AN" in kinds
    return _RTL_ALLOWED.issuperset(kinds) and kinds[-1] in ("R", "AL", "EN", "AN") and not mixed_digits
