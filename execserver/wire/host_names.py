"""The Host header: whether it names this machine as only this machine does.

A web page can make its own name resolve to 127.0.0.1 (DNS rebinding), but its browser then still sends that
name.  A loopback address, or `localhost`, nobody else can claim.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

_HOST = re.compile(r"(?:[A-Za-z0-9.-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


def is_host(text: str) -> bool:
    """True for a name or an address, in brackets where it is IPv6, with or without a port."""
    return _HOST.fullmatch(text) is not None


@lru_cache(maxsize=32)  # clients of a listener send few different ones, and each takes 10 µs to read
def names_loopback(text: str) -> bool:
    """True if a Host header is a loopback address or `localhost`, with any port."""
    if not is_host(text):
        return False
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    try:
        return name.lower() == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
