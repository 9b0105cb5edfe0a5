"""`find` and `grep` on a box: its answers, printed as they come, and the status that a script reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from execserver.box.commands.running import open_client, place_of
from execserver.box.connecting import Box, patience, reaching, unreachable
from execserver.box.files.answers import Answers, Root
from execserver.box.shown import shown
from execserver.client.errors import InvalidParamsError, RequestFailed
from execserver.leaving import Leave, unwritable, write
from execserver.protocol.files import FsWalkError

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.protocol.trees import FsSearchMatch

T = TypeVar("T")

NO_MATCH: Final = 1
TROUBLE: Final = 2
_FILE: Final = "file"
_MOST_OF_A_FILE: Final = 1000  # matches that a box tells
_LONGEST: Final = 1024  # characters of a line, the most that a box tells


class Manner(NamedTuple):
    """How results are printed, and whether what git ignores is left out."""

    gitignore: bool = False
    as_json: bool = False
    null: bool = False


class Wanted(NamedTuple):
    """What `grep` looks for, and what it tells of it."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False
    include: str | None = None
    hidden: bool = False
    numbers: bool = False
    names_only: bool = False
    counts: bool = False


def any_of(patterns: Sequence[str]) -> str:
    """Return one pattern for all: those without a slash are of names in any folder."""
    whole = [each if "/" in each else f"**/{each}" for each in patterns] or ["**/*"]
    return whole[0] if len(whole) == 1 else "{" + ",".join(map(_with_commas_escaped, whole)) + "}"


def _with_commas_escaped(pattern: str) -> str:
    made, depth, at = "", 0, 0
    while at < len(pattern):
        piece = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        depth += (piece == "{") - (piece == "}")
        made += "\\," if piece == "," and depth == 0 else piece
        at += len(piece)
    return made


def find(box: Box, path: str, pattern: str, kind: str | None, manner: Manner) -> int:
    """Print the files (`kind` "file"), folders ("directory") or both below a path; return the exit status."""

    def look(client: ExecServerClient, answers: Answers) -> int:
        root = Root(path, place_of(client, box, path))
        is_empty = True
        with _telling(answers, path):
            for each in _patient(client.files.glob(root.place, pattern, gitignore=manner.gitignore)):
                is_empty = False
                if isinstance(each, FsWalkError):
                    answers.refuse(root, each)
                elif kind is None or each.kind.value == kind:
                    answers.found(root, each.path, kind=each.kind.value)
            if is_empty:
                with patience():
                    is_file = client.files.get_metadata(root.place).is_file
                if is_file:
                    _find_file(answers, root, pattern, kind)
        return 1 if answers.failures else 0

    return _searched(box, "fs_glob", manner, look, 1)


def _find_file(answers: Answers, root: Root, pattern: str, kind: str | None) -> None:
    """Do as `find` where the path is that of a file: a box finds only what is below one."""
    if pattern != any_of([]):
        answers.failures += 1
        answers.complain(os.fsencode(root.asked), "it is a file, and patterns are for what is below a folder")
    elif kind in (None, _FILE):
        answers.found(root, root.place, kind=_FILE)


def grep(box: Box, paths: Sequence[str], wanted: Wanted, manner: Manner) -> int:
    """Print the lines of files that match; return 0 for any, 1 for none, 2 if something was not searched."""

    def look(client: ExecServerClient, answers: Answers) -> int:
        found = False
        printer = _Matches(answers, wanted, several=len(paths) > 1)
        for path in paths:
            root = Root(path, place_of(client, box, path))
            with _telling(answers, path):
                for each in _search(client, root, wanted, manner.gitignore):
                    if isinstance(each, FsWalkError):
                        answers.refuse(root, each)
                    else:
                        found = True
                        printer.print(root, each)
        if printer.cut:
            write(2, f"execserver: {printer.cut} lines are longer, the box tells {_LONGEST} characters\n")
        return TROUBLE if answers.failures else 0 if found else NO_MATCH

    return _searched(box, "fs_search", manner, look, TROUBLE)


@contextmanager
def _telling(answers: Answers, path: str) -> Iterator[None]:
    """Tell and count what the box refuses about a path; a pattern that is none ends the search."""
    try:
        yield
    except InvalidParamsError:
        raise
    except RequestFailed as error:
        answers.failures += 1
        answers.complain(path.encode("utf-8", "surrogateescape"), error.message)


def _searched(
    box: Box,
    capability: str,
    manner: Manner,
    look: Callable[[ExecServerClient, Answers], int],
    failed: int,
) -> int:
    client = open_client(box)
    answers = Answers(as_json=manner.as_json, ends_names_with_null=manner.null)
    try:
        needed = [capability, *(["fs_gitignore"] if manner.gitignore else [])]
        if not all(getattr(client.extensions, each) for each in needed):
            raise unreachable(
                f"{shown(box.name, 200)}: this server cannot search so", "use a newer one there"
            )
        with reaching(box):
            try:
                return look(client, answers)
            except RequestFailed as error:
                raise Leave(failed, stderr=f"Error: {shown(error.message, 1000)}\n") from None
    except OSError as error:
        raise unwritable(error, failed) from None
    finally:
        answers.close()
        client.close()


def _patient(found: Iterator[T]) -> Iterator[T]:
    """Yield what is found; a box that sends no page for a minute is given up."""
    while True:
        with patience():
            each = next(found, None)
        if each is None:
            return
        yield each


_Lines = list["FsSearchMatch"]


def _search(
    client: ExecServerClient, root: Root, wanted: Wanted, gitignore: bool
) -> Iterator[_Lines | FsWalkError]:
    """Yield the matches of each file together, which are at most `_MOST_OF_A_FILE`: more come in parts."""
    found = client.files.search(
        root.place,
        wanted.pattern,
        literal=wanted.literal,
        ignore_case=wanted.ignore_case,
        include=wanted.include,
        hidden=wanted.hidden,
        gitignore=gitignore,
    )
    for is_error, each in groupby(_patient(found), lambda each: (isinstance(each, FsWalkError), each.path)):
        if is_error[0]:
            yield from (error for error in each if isinstance(error, FsWalkError))
            continue
        matches = (match for match in each if not isinstance(match, FsWalkError))
        while part := list(islice(matches, _MOST_OF_A_FILE)):
            yield part


class _Matches:
    """Prints what was found in files, in the form of `grep`."""

    def __init__(self, answers: Answers, wanted: Wanted, *, several: bool) -> None:
        self._answers = answers
        self._wanted = wanted
        self._several = several
        self.cut = 0

    def print(self, root: Root, lines: _Lines) -> None:
        """Print the matches of one file."""
        answers, path = self._answers, lines[0].path
        name = root.name_of(path)
        if answers.as_json:
            self._print_json(name, lines)
        elif self._wanted.names_only:
            answers.put(answers.name(name))
        else:
            head = answers.name(name, b":") if self._several or path != root.place else b""
            if self._wanted.counts:
                answers.put(b"%s%d\n" % (head, len(lines)))
            else:
                for line in lines:
                    self._print_line(head, line)

    def _print_line(self, head: bytes, line: FsSearchMatch) -> None:
        self.cut += len(line.text) >= _LONGEST
        number = b"%d:" % line.line if self._wanted.numbers else b""
        self._answers.put(b"%s%s%s\n" % (head, number, self._answers.text(line.text)))

    def _print_json(self, name: bytes, lines: _Lines) -> None:
        answers, path = self._answers, lines[0].path
        if self._wanted.names_only:
            answers.member(name, path)
        elif self._wanted.counts:
            answers.member(name, path, count=len(lines))
        else:
            for line in lines:
                answers.member(name, path, line=line.line, column=line.column, text=line.text)
