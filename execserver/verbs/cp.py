"""`execserver cp`: files and trees between this machine and a box."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake
from execserver.verbs.boxed import box_of, ended, program
from execserver.verbs.sides import Sides

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.box.connecting import Box
    from execserver.client.client import ExecServerClient

HELP = """\
Copy files and trees to a box, or from it: content, modes, times and symlinks.

Usage: execserver cp [OPTIONS] <SOURCE>... <TARGET>

One side is on a box: NAME:PATH with the name of a box, or :PATH on the box of --box or EXECSERVER_BOX. A PATH
is relative to the home there. The other side is a path here (write ./a:b for one with a colon), or `-`: one
file from stdin or to stdout. Into a folder that exists things are copied under their names, else under the
new one.

Options:
  --box <BOX>               The box of :PATH, by name or URL, as for `execserver run`.
  --resume                  Leave out what is there already, by size and time, and go on with large files that
                            were cut.
  -r, --recursive           Changes nothing: folders are copied with all that is in them.
  -q, --quiet               Show no progress. It is shown where stderr is a terminal.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

Symlinks are copied as such, hard links as files; devices, FIFOs and sockets are left out, which is told. From
a box nothing is written outside the target, whatever it sends, and no set-user-ID bits are taken over. Names
may be no UTF-8, but for one on the box beside `-`. A file appears whole, or not at all; of one of more than
512 KiB that was cut, `.NAME.execserver-part` stays for --resume. For `-` the box needs `sh` or `cat`; one
with another server, for which there is no --resume, needs `sh` and `tar`.

Exit status: 0; 1 something could not be copied, which is told; 2 wrong usage; 126, 127 the box has no `sh` or
`cat`; 255 the box cannot be reached, or was lost.
"""

_USAGE = "[OPTIONS] <SOURCE>... <TARGET>"


def main() -> int:
    """Copy; return the exit status."""
    return ended(_main)


def _main() -> int:
    found = program("cp", HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    sides = Sides(found, parsed)
    quiet, resumes = "--quiet" in parsed.options, "--resume" in parsed.options
    if "-" in sides.sources and (len(sides.sources) > 1 or resumes):
        raise found.mistaken(Mistake("`-` must be the only source, and cannot be resumed"))
    if resumes and sides.target == "-":
        raise found.mistaken(Mistake("what goes to stdout cannot be resumed"))
    box = box_of(sides.box, parsed)
    from execserver.box.commands.running import open_client
    from execserver.box.transfer.copies import PATIENCE_S, copy

    is_stream = "-" in (*sides.sources, sides.target)  # which may pause for as long as it likes
    client = open_client(box, request_timeout=None if is_stream else PATIENCE_S)
    try:
        if client.extensions.fs_many and not is_stream:
            return copy(
                *(client, box, sides.sources, sides.target), up=sides.up, quiet=quiet, resumes=resumes
            )
        if resumes:
            from execserver.box.transfer.syncing import without_trees

            raise without_trees(box)
        return _through_programs(client, box, sides, quiet=quiet, silence_s=PATIENCE_S)
    finally:
        client.close()


def _through_programs(
    client: ExecServerClient, box: Box, sides: Sides, *, quiet: bool, silence_s: float
) -> int:
    """Copy through `tar` or `cat` on the box.  Raises Leave."""
    from execserver.box.transfer.copying import Copier

    copier = Copier(client, box, quiet=quiet, silence_s=silence_s)
    if sides.up:
        copier.upload(sides.sources, sides.target)
    else:
        copier.download(sides.sources, sides.target)
    return 1 if copier.failures else 0
