"""`execserver edit`: files of a box in the editor of this machine."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake
from execserver.verbs.boxed import box_of, ended, program, remote

HELP = """\
Edit files of a box in your editor, and write them back as a whole, only if nobody else has changed them.

Usage: execserver edit [OPTIONS] <BOX:PATH>...

NAME:PATH is a path on the box of that name, :PATH one on the box of --box or EXECSERVER_BOX. A PATH is
relative to the home there. All files are of one box and open at once. A file that is not there is made.

Options:
  --box <BOX>               The box of :PATH, by name or URL, as for `execserver run`.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

The editor is VISUAL, else EDITOR, with its options; else the first of sensible-editor, editor, vi and nano
that there is. It must not return before you are done (EDITOR="code --wait").

The copies are in a folder that only you can read, below TMPDIR. What the editor left as it was is not
written, nor anything when it fails. A file that has changed on the box meanwhile, or that cannot be written,
stays as it is there; your text is kept here and the way to it is told. Content passes byte for byte, mode and
links stay. A file has at most 32 MiB. A connection that is lost while you edit is made again.

Exit status: 0; 1 something could not be read or written, or the editor failed; 2 wrong usage; 128 and the
signal's number after a signal; 255 the box cannot be reached, or was lost.
"""

_USAGE = "[OPTIONS] <BOX:PATH>..."


def main() -> int:
    """Edit; return the exit status."""
    return ended(_main)


def _main() -> int:
    found = program("edit", HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    if not parsed.operands:
        raise found.mistaken(Mistake("a file is missing: BOX:PATH"))
    files = [(operand, remote(operand)) for operand in parsed.operands]
    there = [(operand, match[1], match[2]) for operand, match in files if match is not None]
    if len(there) != len(files):
        raise found.mistaken(Mistake("a file must be on a box: NAME:PATH or :PATH"))
    if len({name for _, name, _ in there}) != 1:
        raise found.mistaken(Mistake("all files must be on the same box"))
    from execserver.box.files import editor

    words = editor.chosen()
    from execserver.box.files.editing import edit

    name, default = there[0][1], parsed.options.get("--box")
    cp = ["execserver", "cp", *(["--box", default] if default is not None and name is None else [])]
    box = box_of(name if name is not None else default, parsed)
    return edit(box, cp, [(operand, path) for operand, _, path in there], words)
