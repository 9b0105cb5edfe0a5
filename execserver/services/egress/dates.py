"""The date in the answers of a proxy."""

from __future__ import annotations

import time


def http_date() -> bytes:
    """Return the date now, as HTTP writes it."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()).encode()
