"""Where the C library looks up users and hosts, when the program carries a C library of its own.

The machine's `/etc/nsswitch.conf` may name services that are modules of the machine's C library; those must
not be loaded into another one.  What the carried one can do by itself remains: files, and DNS for hosts.
"""

from __future__ import annotations

from execserver.runtime_paths import carries_its_c_library

_SERVICES = (
    (b"passwd", b"files"),
    (b"group", b"files"),
    (b"hosts", b"files dns"),
    (b"services", b"files"),
    (b"protocols", b"files"),
)


def use_built_in_ones() -> None:
    """Settle it for the whole process; does nothing where the C library is the machine's.

    Has to come before the first look-up, and in one thread.
    """
    if not carries_its_c_library():
        return
    import ctypes  # late: who does not come here does not pay for it

    configure = ctypes.CDLL(None)["__nss_configure_lookup"]
    for database, services in _SERVICES:
        configure(database, services)
