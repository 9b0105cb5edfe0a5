"""`execserver cp`: files and trees between this machine and a box."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake
from execserver.verbs.boxed import REMOTE, box_of, ended, program

HELP = """\
Copy files and trees to a box, or from it: content, modes, times and symlinks.

Usage: execserver cp [OPTIONS] <SOURCE>... <TARGET>

One side is on a box: NAME:PATH with the name of a box, or :PATH on the box of --box or EXECSERVER_BOX. A PATH
is relative to the home there. The other side is a path here (write ./a:b for one with a colon), or `-`: one
file from stdin or to stdout. Into a folder that exists things are copied under their names, else under the
new one.

Options:
  --box <BOX>               The box of :PATH, by name or URL, as for `execserver run`.
  -q, --quiet               Show no progress. It is shown where stderr is a terminal.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

Symlinks are copied as such, hard links as files, devices and FIFOs are left out. From a box nothing is
written outside the target, whatever it sends, and no set-user-ID bits are taken over. Names that are no UTF-8
are copied as they are, but cannot be given for the box on the command line. The box needs `sh` and `tar`.

Exit status: 0; 1 something could not be copied, which is told; 2 wrong usage; 126, 127 the box has no `tar`;
255 the box cannot be reached, or was lost.
"""

_USAGE = "[OPTIONS] <SOURCE>... <TARGET>"


def main() -> int:
    """Copy; return the exit status."""
    return ended(_main)


def _main() -> int:
    found = program("cp", HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    if len(parsed.operands) < 2:
        raise found.mistaken(Mistake("a source and a target are needed"))
    *sources, target = (REMOTE.fullmatch(operand) or operand for operand in parsed.operands)
    boxed = [each for each in (*sources, target) if not isinstance(each, str)]
    uploads = not isinstance(target, str)
    if uploads == any(not isinstance(each, str) for each in sources) or not boxed:
        raise found.mistaken(Mistake("one side must be on a box (NAME:PATH), the other one here"))
    if (not uploads and len(boxed) != len(sources)) or len({each[1] for each in boxed}) != 1:
        raise found.mistaken(Mistake("all sources must be on the same side, and on the same box"))
    if "-" in sources and len(sources) > 1:
        raise found.mistaken(Mistake("`-` must be the only source"))
    from execserver.box.copying import Copier

    box = boxed[0][1] if boxed[0][1] is not None else parsed.options.get("--box")
    copier = Copier(box_of(box, parsed), quiet="--quiet" in parsed.options)
    try:
        if not isinstance(target, str):
            copier.upload([str(each) for each in sources], _at_home(target[2]))
        else:
            copier.download([_at_home(each[2]) for each in sources if not isinstance(each, str)], target)
    finally:
        copier.close()
    return 1 if copier.failures else 0


def _at_home(path: str) -> str:
    """Return a path on a box relative to the home, in which commands start there."""
    return "." if path in ("", "~") else path.removeprefix("~/")
