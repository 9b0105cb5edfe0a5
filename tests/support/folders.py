"""Where temporary folders belong whose paths a test puts into URIs or into the addresses of sockets."""

from __future__ import annotations

import os
import tempfile
from urllib.parse import quote

_MOST_BYTES = 40  # an address of a Unix socket has 107, and tests make folders and names below


def plain_place() -> str:
    """Return a folder whose path is short and the same in a URI: the usual one, if it is like that."""
    usual = tempfile.gettempdir()
    for folder in (usual, "/tmp", "/var/tmp"):
        if len(folder) <= _MOST_BYTES and quote(folder) == folder and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return usual
