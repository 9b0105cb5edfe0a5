"""Where the C library looks up users and hosts if the program carries its own C library.

The machine's `/etc/nsswitch.conf` may name services that are modules of the machine's C library; another C
library must not load those.  What remains is built into the carried one: files, and DNS for hosts.
"""

from __future__ import annotations

from functools import cache

from execserver.runtime_paths import carries_its_c_library

_SERVICES = (
    (b"passwd", b"files"),
    (b"group", b"files"),
    (b"hosts", b"files dns"),
    (b"services", b"files"),
    (b"protocols", b"files"),
)


@cache
def use_built_in_ones() -> None:
    """Set the services for the whole process, once; do nothing if the C library is the machine's.

    To be called before the first look-up, while there is only one thread.
    """
    if not carries_its_c_library():
        return
    import ctypes  # late: only needed here

    configure = ctypes.CDLL(None)["__nss_configure_lookup"]
    for database, services in _SERVICES:
        configure(database, services)
