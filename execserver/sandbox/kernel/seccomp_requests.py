"""The requests of `ioctl` in the filters: those always refused, and the only ones allowed under Landlock.

Requests have the same numbers on both architectures.  For many that change something, a descriptor opened for
reading is enough.  So under Landlock, where no mount is read-only, the harmless requests are listed.
"""

from __future__ import annotations

# Refused to every sandboxed command.
REFUSED_REQUESTS = (
    0x5412,  # TIOCSTI: types into a terminal, for the shell that reads there next
    0x541C,  # TIOCLINUX: pastes into a console
    0x5423,  # TIOCSETD: hands a terminal to another line discipline, such as a network protocol
    0x540C,  # TIOCEXCL: nobody else can open the terminal any more
    0x541D,  # TIOCCONS: takes the messages of the console
    0xC0506617,  # FS_IOC_ADD_ENCRYPTION_KEY: no write access needed for these three; a removed key takes the
    0xC0406618,  # FS_IOC_REMOVE_ENCRYPTION_KEY: files it encrypts away from all of the machine
    0xC0406619,  # FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS
)
# Requests of consoles, as pairs of a first and a last one: keyboards (a text bound to a key is input to
# whoever has the console) and switching.  Other requests with these letters carry a direction or a size.
REFUSED_RANGES = (0x4B00, 0x4BFF, 0x5600, 0x56FF)

_GETFLAGS, _GETVERSION = 0x80086601, 0x80087601
_GETXATTR = 0x801C581F
_FIBMAP, _FIGETBSZ = 1, 2
_FIEMAP = 0xC020660B
_GET_POLICY, _GET_POLICY_EX = 0x400C6615, 0xC0096616
_GET_KEY_STATUS = 0xC080661A
_MEASURE_VERITY = 0xC0046686
_GET_LABEL, _GET_UUID = 0x81009431, 0x80111500
_CLONE, _CLONE_RANGE = 0x40049409, 0x4020940D  # into a file that is open for writing
_SINGLE = (
    *(_FIBMAP, _FIGETBSZ, _FIEMAP, _GETFLAGS, _GETVERSION, _GETXATTR),
    *(_GET_POLICY, _GET_POLICY_EX, _GET_KEY_STATUS, _MEASURE_VERITY, _GET_LABEL, _GET_UUID),
    *(_CLONE, _CLONE_RANGE),
    # Terminals of their own: TIOCGPTN, TIOCSPTLCK, TIOCGDEV, TIOCGPKT, TIOCGPTLCK, TIOCGEXCL, TIOCSIG,
    # and TCGETS2 with its settings.
    *(0x80045430, 0x40045431, 0x80045432, 0x80045438, 0x80045439, 0x80045440, 0x40045436),
    *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D),
    # Seccomp user notification: a listener is about processes under its own filter only.
    *(0xC0502100, 0xC0182101, 0x40082102, 0x80082102, 0x40182103, 0x40082104),
)
_RANGES = (
    (0x5400, 0x54FF),  # terminals, and FIONREAD, FIONBIO, FIOASYNC, FIOCLEX, FIONCLEX, FIOQSIZE
    (0x8900, 0x89FF),  # sockets: changing any setting takes capabilities
    (0xB701, 0xB704),  # NS_GET_*
    (0xFF01, 0xFF0A),  # PIDFD_GET_*: descriptors of the caller's own namespaces
)


def _pairs() -> tuple[int, ...]:
    pairs = sorted([*_RANGES, *((request, request) for request in _SINGLE)])
    return tuple(bound for pair in pairs for bound in pair)


# The requests allowed where there are no namespaces, sorted, as pairs of a first and a last one.
KNOWN_REQUESTS = _pairs()
