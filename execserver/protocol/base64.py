"""Base64 by the wire contract: standard alphabet, padded, canonical, an error text for each kind of damage.

Standard library only, so that helper processes can use it; pybase64 does the work where it is installed.
`decode` accepts exactly one spelling of each byte string: no white space, no missing or surplus padding, no
stray bits in the last symbol (wire contract, section 5, rule 9).
"""

from __future__ import annotations

import binascii

try:
    from pybase64 import b64decode as _fast_decode
    from pybase64 import b64encode as _fast_encode

    _FAST = True
except ImportError:  # a helper process started without the installed packages
    _FAST = False

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PAD = ord("=")
LITTLE_BYTES = 256
# Last symbols without stray bits: before `==` the low four bits must be zero, before `=` the low two.
_LAST_BEFORE_TWO_PADS = frozenset(_ALPHABET[::16].decode())
_LAST_BEFORE_ONE_PAD = frozenset(_ALPHABET[::4].decode())


class InvalidBase64(ValueError):
    """The text is not canonical base64; the message is the contract's."""


def encode(data: bytes | bytearray | memoryview) -> bytes:
    """Return the base64 text of some bytes, as ASCII bytes."""
    # For little the interpreter's own is the faster one: after a pause the library's code is in no cache,
    # which costs 2 to 4 us more than it saves.
    if _FAST and len(data) > LITTLE_BYTES:
        return _fast_encode(data)
    return binascii.b2a_base64(data, newline=False)


def decode(text: str) -> bytes:
    """Return the decoded bytes of a base64 text; raise InvalidBase64."""
    try:
        if len(text) <= LITTLE_BYTES:
            return decode_little(text.encode("ascii"))
        data = _decode_alphabet(text)
    except ValueError:  # binascii.Error is one
        raise _complaint(text) from None
    # Neither library refuses stray bits, which only a padded text can have.
    if text[-1:] == "=" and not _is_canonical(text):
        raise _complaint(text)
    return data


def decode_buffer(text: bytes | memoryview) -> bytes:
    """Return the decoded bytes of a base64 text, without a copy of it; raise ValueError."""
    if len(text) <= LITTLE_BYTES:
        return decode_little(text)
    data = _decode_alphabet(text)
    end = bytes(text[-4:])
    if end[-1:] == b"=" and not _is_canonical(end.decode("ascii")):
        raise ValueError("stray bits")
    return data


def decode_little(text: bytes | memoryview) -> bytes:
    """Return the decoded bytes of at most `LITTLE_BYTES` of base64 text; raise ValueError."""
    # Each byte string has one spelling, so what is encoded to the same text was that one.
    data = binascii.a2b_base64(text)
    if binascii.b2a_base64(data, newline=False) != text:
        raise ValueError("not canonical")
    return data


def _decode_alphabet(text: str | bytes | memoryview) -> bytes:
    if _FAST and len(text) > LITTLE_BYTES:
        return _fast_decode(text, validate=True)
    if len(text) % 4:
        raise ValueError("not a whole number of groups")  # binascii accepts `AAAA=`
    return binascii.a2b_base64(text, strict_mode=True)


def _is_canonical(text: str) -> bool:
    if text[-2] == "=":
        return text[-3] in _LAST_BEFORE_TWO_PADS
    return text[-2] in _LAST_BEFORE_ONE_PAD


def _complaint(text: str) -> InvalidBase64:
    """Return the error for a refused text: full groups of four are checked first, then the last group."""
    # The order of the reference server's decoder: clients see its first error.
    data = text.encode("utf-8", "surrogatepass")
    rest = len(data) % 4
    if rest == 1 and data[-1] != _PAD and data[-1] not in _ALPHABET:
        return _symbol(data, len(data) - 1)
    start = max(len(data) - (rest or 4), 0)
    for offset in range(start):
        if data[offset] not in _ALPHABET:
            return _symbol(data, offset)
    return _complaint_about_end(data, start)


def _complaint_about_end(data: bytes, start: int) -> InvalidBase64:
    tail = data[start:]
    symbols = tail.rstrip(b"=")
    for index, byte in enumerate(tail):
        if (byte == _PAD and (index < 2 or index < len(symbols))) or (byte != _PAD and byte not in _ALPHABET):
            return _symbol(data, start + index)
    if len(symbols) < 2:
        return InvalidBase64(f"Invalid input length: {start + len(symbols)}")
    if len(tail) != 4:
        return InvalidBase64("Invalid padding")
    last = start + len(symbols) - 1
    return InvalidBase64(f"Invalid last symbol {data[last]}, offset {last}.")


def _symbol(data: bytes, offset: int) -> InvalidBase64:
    return InvalidBase64(f"Invalid symbol {data[offset]}, offset {offset}.")
