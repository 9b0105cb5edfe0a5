"""`execserver sync`: a file or tree of a box kept like one here, or the other way round."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake
from execserver.verbs.boxed import box_of, ended, program
from execserver.verbs.sides import Sides

HELP = """\
Make a file or tree on a box like the one here, or the one here like that on a box: only what differs travels.

Usage: execserver sync [OPTIONS] <SOURCE> <TARGET>

One side is on a box, NAME:PATH or :PATH, and the other one here, as for `execserver cp`. What is in the
folder SOURCE is then in the folder TARGET. A file is the same if size and time are; where only the time
differs, the hashes decide.

Options:
  --delete                  Remove what SOURCE does not have, and let a file replace a folder and the other
                            way round. Not if SOURCE is empty or cannot be read as a whole.
  -n, --dry-run             Print what would be done, and do nothing.
  --watch                   Go on with every change of SOURCE, until ^C.
  --checksum                Compare the contents of all files of equal size.
  --exclude <GLOB>          Leave out names, or with a `/` paths below SOURCE, on both sides. May be given
                            several times.
  --json                    Print each step and a summary as a line of JSON.
  --box <BOX>               The box of :PATH, by name or URL, as for `execserver run`.
  -q, --quiet               Show no progress and no summary.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

Contents, permissions, times and symlinks are kept; devices, FIFOs and sockets are left out, which is told and
no failure. No link is followed below TARGET, and nothing is written outside of it. A file appears whole, or
not at all; one of more than 512 KiB that was cut is gone on with, from `.NAME.execserver-part`. The box needs
an execserver that can list trees; no other program.

Exit status: 0; 1 something could not be done, which is told; 2 wrong usage; 128 and the signal's number after
^C (130) and other signals; 255 the box cannot be reached, or was lost.
"""
_USAGE = "[OPTIONS] <SOURCE> <TARGET>"


def main() -> int:
    """Sync; return the exit status."""
    return ended(_main)


def _main() -> int:
    found = program("sync", HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    sides = Sides(found, parsed)
    if len(parsed.operands) > 2:
        raise found.mistaken(Mistake(f"unexpected argument '{parsed.operands[2]}' found"))
    given = parsed.options
    if "--watch" in given and "--dry-run" in given:
        raise found.mistaken(Mistake("'--watch' and '--dry-run' exclude each other"))
    from execserver.box.transfer.copies import Wanted, sync
    from execserver.box.transfer.syncing import Manner

    globs = [word.partition("=")[2] for word in parsed.words if word.startswith("--exclude=")]
    manner = Manner("--delete" in given, "--checksum" in given, "--dry-run" in given, tuple(globs))
    wanted = Wanted(sides.sources[0], sides.target, sides.up, "--json" in given, "--quiet" in given)
    return sync(box_of(sides.box, parsed), wanted, manner, watch="--watch" in given)
