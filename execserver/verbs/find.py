"""`execserver find` and `execserver grep`: files of a box by their names and by their lines."""

from __future__ import annotations

import sys

from execserver.arguments import Mistake, Parsed, Program
from execserver.verbs.boxed import box_of, ended, program, remote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.box.connecting import Box

HELP = """\
Find files and folders of a box by their names.

Usage: execserver find [OPTIONS] <[BOX:]PATH> [PATTERN]...

NAME:PATH is a path on the box of that name; :PATH and PATH are on the box of --box or EXECSERVER_BOX, without
both on this machine. A PATH is relative to the home there (here to the folder you are in). Write ./a:b for
one with a colon.

A PATTERN without a slash is for names in any folder, one with a slash for paths below PATH: `*` and `?` (not
for a slash), [ab], [a-c], [!ab], {a,b}, and ** for any number of folders. Several count as any of them, none
finds everything. A PATH that is a file is found itself, without a PATTERN.

Options:
  --type <TYPE>             f: files only, d: folders only.
  --gitignore               Leave out what git would ignore, and .git.
  -0, --null                End each name with a NUL byte instead of a line end.
  --json                    One JSON object on a line for each: path, uri (exact also for names that are no
                            UTF-8) and kind, or error.
  --box <BOX>               The box of :PATH and PATH, by name or URL, as for `execserver run`.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

Names are escaped on a terminal, and byte for byte elsewhere. Symlinks and special files are not listed, and
no link is followed. Where the box has looked at a part only, that is told.

Exit status: 0; 1 something could not be looked at; 2 wrong usage; 141 nobody reads the output; 255 the box
cannot be reached, or was lost.
"""

GREP_HELP = """\
Find lines of files of a box, without copying the files.

Usage: execserver grep [OPTIONS] <PATTERN> <[BOX:]PATH>...

PATTERN is a regular expression of Python's `re`, matched line by line. A PATH is as for `execserver find`;
below a folder all files are searched but binary ones and those with a dot at the beginning of a name on the
way. All paths are on the same box.

Options:
  -i, --ignore-case         Take capital and small letters as the same.
  -F, --fixed-strings       PATTERN is text, no regular expression.
  -n, --line-number         Print the number of each line.
  -l, --files-with-matches  Print only the names of files.
  -c, --count               Print how many lines match in each file that has any.
  --glob <PATTERN>          Only files with such a name, or path below PATH, as for `execserver find`.
  -r, --recursive           Changes nothing: folders are searched with all that is in them.
  --hidden                  Also files and folders whose names begin with a dot.
  --gitignore               Leave out what git would ignore, and .git.
  -0, --null                Print a NUL byte behind each name of a file.
  --json                    One JSON object on a line for each match: path, uri, line, column and text.
  --box <BOX>               The box of :PATH and PATH, by name or URL, as for `execserver run`.
  --token-file <FILE>       Token for the box, on one line. Else the boxes file has it, else EXECSERVER_TOKEN.
  -h, --help                Print this text and exit.

A box tells the first 1000 lines that match in a file and the first 1024 characters of a line, and passes over
files of more than 16 MiB and those in which PATTERN takes longer than 3 s; it is told where that was so.

Exit status: 0 some line matches; 1 none; 2 something could not be searched, or wrong usage; 141 nobody reads
the output; 255 the box cannot be reached, or was lost.
"""

_USAGE = "[OPTIONS] <[BOX:]PATH> [PATTERN]..."
_GREP_USAGE = "[OPTIONS] <PATTERN> <[BOX:]PATH>..."
_TYPES = {"f": "file", "d": "directory"}


def main() -> int:
    """Find names; return the exit status."""
    return ended(_find)


def grep() -> int:
    """Find lines; return the exit status."""
    return ended(_grep)


def _find() -> int:
    found = program("find", HELP, _USAGE)
    parsed = found.parse(sys.argv[1:])
    if not parsed.operands:
        raise found.mistaken(Mistake("a path is missing"))
    kind = parsed.options.get("--type")
    if kind is not None and kind not in _TYPES:
        raise found.mistaken(Mistake(f"invalid value '{kind}' for '--type <TYPE>': f or d"))
    name, (path,) = _on_one_box(found, parsed.operands[:1])
    from execserver.box.files.finding import Manner, any_of, find

    options = parsed.options
    manner = Manner("--gitignore" in options, "--json" in options, "--null" in options)
    pattern = any_of(parsed.operands[1:])
    return find(_box(name, parsed), path, pattern, None if kind is None else _TYPES[kind], manner)


def _grep() -> int:
    found = program("grep", GREP_HELP, _GREP_USAGE)
    parsed = found.parse(sys.argv[1:])
    if len(parsed.operands) < 2:
        raise found.mistaken(Mistake("a pattern and a path are needed"))
    name, paths = _on_one_box(found, parsed.operands[1:])
    from execserver.box.files.finding import Manner, Wanted, any_of, grep

    options = parsed.options
    glob = options.get("--glob")
    wanted = Wanted(
        parsed.operands[0],
        literal="--fixed-strings" in options,
        ignore_case="--ignore-case" in options,
        include=None if glob is None else any_of([glob]),
        hidden="--hidden" in options,
        numbers="--line-number" in options,
        names_only="--files-with-matches" in options,
        counts="--count" in options,
    )
    manner = Manner("--gitignore" in options, "--json" in options, "--null" in options)
    return grep(_box(name, parsed), paths, wanted, manner)


def _on_one_box(found: Program, operands: list[str]) -> tuple[str | None, list[str]]:
    """Return the name of the box, None for the default one, and the paths there.  Raises Leave."""
    matches = [(remote(operand), operand) for operand in operands]
    places = [(None, operand) if match is None else (match[1], match[2]) for match, operand in matches]
    if len({name for name, _ in places}) != 1:
        raise found.mistaken(Mistake("all paths must be on the same box"))
    return places[0][0], [path or "." for _, path in places]


def _box(name: str | None, parsed: Parsed) -> Box:
    return box_of(name if name is not None else parsed.options.get("--box"), parsed)
