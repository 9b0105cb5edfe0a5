"""A module of dist/execserver.pyz beside its `__main__`: why a Python is not served."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OTHER_MACHINE = (
    "start it on a machine of one of those kinds, "
    "or take a file for this kind (execserver-all.pyz serves x86_64 and aarch64)"
)
_OTHER_FILE = "take the file without .pyz, which needs no Python"


def refusal(served: Sequence[str], mark: str) -> str:
    """Return what is said to a Python with a tag that is not among those that are served."""
    machines = dict.fromkeys(_split(each)[1] for each in served)
    _, machine, library = _split(mark)
    if machine not in machines:
        kind = "of 32 bits" if machine.endswith("_32bit") else f"for {machine}"
        return _told(
            f"this file serves {_and(machines)}, and this Python is {kind}",
            "start it with a 64-bit Python" if kind == "of 32 bits" else _OTHER_MACHINE,
        )
    here = [each for each in served if _split(each)[1:] == (machine, library)]
    if not here:
        return _told(f"this file needs a Python with glibc, and this Python is {mark}", _OTHER_FILE)
    return _told(
        f"this file serves {_and(here)} on {machine}, and this Python is {mark}",
        f"start it with one of those, or {_OTHER_FILE}",
    )


def _split(mark: str) -> tuple[str, str, str]:
    version, machine, library = mark.split("-")
    return version, machine, library


def _and(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _told(what: str, cure: str) -> str:
    return f"execserver: {what}\n  What to do: {cure}\n"
