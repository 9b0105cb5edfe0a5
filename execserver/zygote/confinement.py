"""How a process that a zygote starts is confined: one tagged value, and its bytes in a request."""

from __future__ import annotations

import struct

NOTHING = "none"
NATIVE = "native"  # namespaces, made by the zygote's child
BUBBLEWRAP = "bubblewrap"
LANDLOCK = "landlock"  # Landlock and a seccomp filter, for plans that these express exactly
FILTER = "filter"  # a seccomp filter alone: files are not restricted
REFUSAL = "refusal"  # only a child is started that prints why
KINDS = (NOTHING, NATIVE, BUBBLEWRAP, LANDLOCK, FILTER, REFUSAL)
WITH_PLAN = (NATIVE, BUBBLEWRAP, LANDLOCK)
_WITH_DETAIL = (BUBBLEWRAP, FILTER, REFUSAL)
_WITH_OWN_INIT = (NATIVE, BUBBLEWRAP)

_DETAIL_BYTES = struct.Struct("<I")  # before the detail, which the plan follows
_STATUSES = 256


class Confinement(tuple[str, bytes, bytes]):
    """The kind of confinement, and what that kind needs.

    NATIVE, BUBBLEWRAP and LANDLOCK enforce an encoded `plan`.  The `detail` is the encoded program for
    BUBBLEWRAP, the name of the filter for FILTER, and for REFUSAL an exit status, a space and a line, which a
    child writes to stderr before it exits with the status.
    """

    __slots__ = ()

    def __new__(cls, kind: str = NOTHING, plan: bytes = b"", detail: bytes = b"") -> Confinement:
        return super().__new__(cls, (kind, plan, detail))

    @property
    def kind(self) -> str:
        """The tag, one of KINDS."""
        return self[0]

    @property
    def plan(self) -> bytes:
        """The encoded plan; empty where files are not restricted."""
        return self[1]

    @property
    def detail(self) -> bytes:
        """What the kind needs besides the plan."""
        return self[2]

    def with_plan(self, plan: bytes) -> Confinement:
        """Return the same confinement for another encoded plan."""
        return Confinement(self.kind, plan, self.detail)

    @property
    def has_own_init(self) -> bool:
        """True when the program runs under a sandbox init of its own."""
        return self.kind in _WITH_OWN_INIT

    @property
    def refusal(self) -> str:
        """The line that a child writes in place of the program; empty when the program is started."""
        return self.detail.partition(b" ")[2].decode("utf-8", "replace") if self.kind == REFUSAL else ""

    @property
    def refusal_status(self) -> int:
        """The exit status of that child."""
        return int(self.detail.partition(b" ")[0])


UNCONFINED = Confinement()


def refused(text: str, status: int = 1) -> Confinement:
    """Return the confinement that stands for a program that is not started.

    `text` is the line for its stderr, `status` its exit status, at most 255.
    """
    return Confinement(REFUSAL, detail=b"%d %b" % (status, text.encode()))


def filtered(syscall_filter: str) -> Confinement:
    """Return a confinement by a filter alone, one of the FILTER_* words of sandbox plans."""
    return Confinement(FILTER, detail=syscall_filter.encode())


def encode_confinement(confinement: Confinement) -> tuple[int, bytes]:
    """Return the number of the kind, and the rest as bytes."""
    kind, plan, detail = confinement
    return KINDS.index(kind), _DETAIL_BYTES.pack(len(detail)) + detail + plan


def decode_confinement(number: int, data: bytes) -> Confinement:
    """Return the confinement of a kind's number and its bytes; raise ValueError for malformed ones."""
    if number >= len(KINDS) or len(data) < _DETAIL_BYTES.size:
        raise ValueError("unknown or missing confinement")
    kind, end = KINDS[number], _DETAIL_BYTES.size + _DETAIL_BYTES.unpack_from(data)[0]
    detail, plan = data[_DETAIL_BYTES.size : end], data[end:]
    if end > len(data) or (plan and kind not in WITH_PLAN) or (detail and kind not in _WITH_DETAIL):
        raise ValueError(f"malformed confinement of kind {kind}")
    status, space, _ = detail.partition(b" ")
    if kind == REFUSAL and not (space and status.isdigit() and int(status) < _STATUSES):
        raise ValueError("refusal without a status")
    return Confinement(kind, plan, detail)
