"""A server that counts its greenlet switches: `-m bench.counted_server FILE ARGUMENTS...`.

FILE holds the count so far, eight bytes, little-endian.
"""

from __future__ import annotations

import mmap
import struct
import sys

import greenlet

from bench.patient_program import wait_longer

COUNT = struct.Struct("<Q")


def main(argv: list[str]) -> int:
    """Serve; return the exit status."""
    with open(argv[0], "r+b") as file:
        shown = mmap.mmap(file.fileno(), COUNT.size)
    count = 0

    def note(event: str, _: object) -> None:
        nonlocal count
        count += 1
        COUNT.pack_into(shown, 0, count)

    wait_longer()
    greenlet.settrace(note)
    sys.argv = ["execserver", *argv[1:]]
    from execserver.dispatch import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
