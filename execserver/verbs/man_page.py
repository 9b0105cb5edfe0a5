"""A help text as a manual page, in the man macros of roff: the text is written once, and this is its form.

It goes by the habits of our help texts: a summary, `Usage:`, headings that end with a colon above indented
entries, paragraphs in between.  `Exit status:` begins a section of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SECTIONS = ("Options", "Environment", "Commands")
_STATUS = "Exit status: "
_ENTRY = re.compile(r"  (\S.*?)(?:  +(\S.*))?")
_MARKED = re.compile(r"`([^`]+)`|(?<![\w-])(--?[A-Za-z][\w-]*)|<([A-Z][A-Z_-]*)>")
_ESCAPES = str.maketrans(
    {"\\": "\\(rs", "-": "\\-", "'": "\\(aq", "^": "\\(ha", "~": "\\(ti", "`": "\\(ga", '"': "\\(dq"}
)


def manual_page(verb: str | None, text: str, version: str) -> str:
    """Return the page about a verb, None: about the program."""
    name = "execserver" if verb is None else f"execserver-{verb}"
    (summary, *rest), usage, body = _parted(text)
    lines = [
        f'.TH {name.upper()} 1 "" "execserver {version}" "User Commands"',
        ".SH NAME",
        f"{_plain(name)} \\- {_plain(summary.partition('. ')[0].rstrip('.'))}",
        ".SH SYNOPSIS",
        ".nf",
        *(_marked(line) for line in usage),
        ".fi",
        ".SH DESCRIPTION",
        _marked(" ".join((summary, *rest))),
    ]
    status: list[str] = []
    for block in body:
        into = status if block[0].startswith(_STATUS) else lines
        into += _block(block)
    see = "execserver help [VERB], execserver help --man [VERB]"
    return "\n".join([*lines, *status, ".SH SEE ALSO", _marked(see), ""])


def _parted(text: str) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the summary, the lines of usage and the other blocks between empty lines."""
    blocks = [block.splitlines() for block in re.split(r"\n{2,}|\n(?=Exit status: )", text.strip("\n"))]
    at = next(number for number, block in enumerate(blocks) if block[0].startswith("Usage: "))
    usage = [line.removeprefix("Usage:").strip() for line in blocks[at]]
    return [line for block in blocks[:at] for line in block], usage, blocks[at + 1 :]


def _block(block: list[str]) -> Iterator[str]:
    first, rest = block[0], block[1:]
    if first.startswith(_STATUS):
        yield from (".SH EXIT STATUS", _marked(" ".join([first.removeprefix(_STATUS), *rest])))
        return
    if first.endswith(":") and rest and rest[0].startswith("  "):
        yield from _heading(first.removesuffix(":"))
        indented = [line for line in rest if line.startswith("  ")]
        yield from _entries(indented)
        after = rest[len(indented) :]
        if after:
            yield from (".PP", _marked(" ".join(after)))
    elif any("  " in line for line in block):
        yield from (".PP", ".nf", *(_marked(line) for line in block), ".fi")
    else:
        yield from (".PP", _marked(" ".join(block)))


def _heading(words: str) -> Iterator[str]:
    if words in _SECTIONS:
        yield f".SH {words.upper()}"
    elif words.startswith(_SECTIONS):
        yield from (".SH OPTIONS", ".PP", _marked(words + ":"))
    else:
        yield from (".PP", _marked(words + ":"))


def _entries(lines: list[str]) -> Iterator[str]:
    """Yield indented lines: as terms with what they mean, or as they are if nothing is explained."""
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        found = _ENTRY.fullmatch(line)
        if found is not None:
            entries.append((found[1], [found[2]] if found[2] else []))
        elif entries:
            entries[-1][1].append(line.strip())
    if all(not meaning for _, meaning in entries) or any(line.endswith("\\") for line in lines):
        yield from (".PP", ".nf", *(_marked(line) for line in lines), ".fi")
        return
    for term, meaning in entries:
        yield from (".TP", _marked(term), _marked(" ".join(meaning)) or "\\&")


def _marked(text: str) -> str:
    """Return text with commands and options bold and values in italics, safe at a line's beginning."""
    made, at = "", 0
    for found in _MARKED.finditer(text):
        made += _plain(text[at : found.start()])
        if found[3] is not None:
            made += f"\\fI{_plain(found[3])}\\fR"
        else:
            made += f"\\fB{_plain(found[1] or found[2])}\\fR"
        at = found.end()
    made += _plain(text[at:])
    return f"\\&{made}" if made.startswith((".", " ")) else made


def _plain(text: str) -> str:
    return text.translate(_ESCAPES)
