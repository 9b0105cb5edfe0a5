"""The date in the answers of a proxy."""

from __future__ import annotations

import time
from functools import lru_cache


def http_date() -> bytes:
    """Return the date now, as HTTP writes it."""
    return _date(int(time.time()))


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second)).encode()
