"""The boxes file, `~/.config/execserver/boxes.toml`: names, URLs, tokens.

A file that others could have changed is refused, since it decides whose machine gets a command; one that
others can read is refused once it holds a token.  Changes keep what a person wrote around them, and are one
step: readers see the old file or the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from execserver.box.address import BadBox, is_name, parse
from execserver.private_file import replace

FILE_VARIABLE: Final = "EXECSERVER_BOXES"
MAX_BYTES: Final = 256 * 1024
MAX_BOXES: Final = 256
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ: Final = stat.S_IRGRP | stat.S_IROTH
_MEMBERS: Final = ("url", "token", "token-file", "ca-file")


class BookError(Exception):
    """The boxes file cannot be used; `cure` says what to do."""

    def __init__(self, text: str, cure: str) -> None:
        super().__init__(text)
        self.cure = cure


class Entry(NamedTuple):
    """One box of the file; `token` or `token_file` proves who comes, `ca_file` is trusted for wss://."""

    name: str
    url: str
    token: str | None = None
    token_file: str | None = None
    ca_file: str | None = None


def default_path(environ: Mapping[str, str]) -> str:
    """Return where the file is.  Raises BookError without a home."""
    if given := environ.get(FILE_VARIABLE):
        return given
    base = environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            raise BookError("there is no home for boxes.toml", f"set HOME, or {FILE_VARIABLE} to a file")
        base = f"{home}/.config"
    return f"{base}/execserver/boxes.toml"


def entries(path: str) -> dict[str, Entry]:
    """Return the boxes by name, none without a file.  Raises BookError."""
    text = _text(path)
    found = _parsed(path, text)
    if any(entry.token is not None for entry in found.values()):
        _check_unread(path)
    return found


def add(path: str, entry: Entry) -> None:
    """Add a box.  Raises BookError, also if the name is taken; BadBox for a name or URL that is none."""
    if not is_name(entry.name):
        raise BadBox(
            f"{entry.name!r} is no name", "take letters, digits, `_`, `-` and `.`, 63 at most, a letter first"
        )
    parse(entry.url)
    with _locked(path) as path:
        text = _text(path)
        known = _parsed(path, text)
        if entry.name in known:
            raise BookError(
                f"there is a box {entry.name} already: {known[entry.name].url}",
                f"choose another name, or first: execserver box remove {entry.name}",
            )
        if len(known) >= MAX_BOXES:
            raise BookError(f"{path} has {MAX_BOXES} boxes already", "remove one first")
        gap = "\n" if text and not text.endswith("\n\n") else ""
        _replace(path, f"{text}{gap}{_section(entry)}", {**known, entry.name: entry})


def remove(path: str, name: str) -> None:
    """Remove a box.  Raises BookError, also if there is none of that name."""
    with _locked(path) as path:
        text = _text(path)
        known = _parsed(path, text)
        if name not in known:
            raise BookError(f"there is no box {name!r}", "`execserver box list` shows those there are")
        header = re.compile(
            rf'^\[boxes\.(?:{re.escape(name)}|"{re.escape(name)}")\][^\n]*\n(?:(?!\[)[^\n]*\n?)*', re.M
        )
        del known[name]
        _replace(path, header.sub("", text, count=1), known)


def _section(entry: Entry) -> str:
    values = zip(_MEMBERS, (entry.url, entry.token, entry.token_file, entry.ca_file), strict=True)
    # JSON's strings are TOML's, but for characters that are refused before.
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values if value is not None
    ]
    return "\n".join([f"[boxes.{json.dumps(entry.name)}]", *lines, ""])


def _replace(path: str, text: str, expected: dict[str, Entry]) -> None:
    edit = f"change {path} by hand"
    try:
        fits = _parsed(path, text) == expected and len(text.encode()) <= MAX_BYTES
    except (BookError, UnicodeEncodeError):
        fits = False
    if not fits:
        raise BookError(f"{path} is written in a way that this program cannot change safely", edit)
    try:
        replace(path, text)
    except OSError as error:
        raise BookError(
            f"{path} cannot be written: {error.strerror}", "look at its folder and the disk"
        ) from None


@contextmanager
def _locked(path: str) -> Iterator[str]:
    """Lock the file, and yield where it is: a link to it stays, and is no second file beside it."""
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        _check_folders(path)  # first: whoever may write there could hold the lock for ever
        path = os.path.realpath(path)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BookError(
            f"{folder} cannot be used: {error.strerror}", "choose a folder you may write to"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held by `box add` and `box remove` only, for some milliseconds
        yield path
    finally:
        os.close(lock)


def _text(path: str) -> str:
    try:
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - closed by the with below
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise BookError(
            f"{path} cannot be read: {error.strerror}", "make it readable for you alone"
        ) from None
    with file:
        _check_own(path, os.fstat(file.fileno()), is_folder=False)
        _check_folders(path)
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BookError(f"{path} has more than {MAX_BYTES // 1024} KiB", "remove boxes from it")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BookError(f"{path} is no UTF-8", "write it again") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would wait for its writer


def _check_folders(path: str) -> None:
    """Check the folder of the file, and if that is a link, of the link.  Raises OSError and BookError."""
    folders = [os.path.dirname(path) or ".", os.path.dirname(os.path.realpath(path))]
    for folder in dict.fromkeys(folders):
        _check_own(folder, os.stat(folder), is_folder=True)


def _check_own(path: str, found: os.stat_result, *, is_folder: bool) -> None:
    kind = stat.S_ISDIR if is_folder else stat.S_ISREG
    if not kind(found.st_mode):
        raise BookError(f"{path} is not a {'folder' if is_folder else 'regular file'}", "move it away")
    if found.st_uid not in (os.geteuid(), 0):
        raise BookError(
            f"{path} belongs to another user, who could lead you anywhere", "make one of your own"
        )
    if found.st_mode & _OTHERS_WRITE:
        raise BookError(f"others may write to {path} and could lead you anywhere", f"chmod go-w {path}")


def _check_unread(path: str) -> None:
    if os.stat(path).st_mode & _OTHERS_READ:
        raise BookError(
            f"{path} holds a token, and others may read it", f"chmod 600 {path}; replace the token"
        )


def _parsed(path: str, text: str) -> dict[str, Entry]:
    cure = f"correct {path}, or move it away"
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BookError(f"{path} is no TOML: {error}", cure) from None
    boxes = content.get("boxes", {})
    if not isinstance(boxes, dict) or len(boxes) > MAX_BOXES or set(content) - {"boxes"}:
        raise BookError(f"{path} may hold tables [boxes.NAME] only, {MAX_BOXES} at most", cure)
    return {name: _entry(path, name, members) for name, members in boxes.items()}


def _entry(path: str, name: str, members: object) -> Entry:
    cure = f"correct [boxes.{name}] in {path}: it has url, and may have token, token-file and ca-file"
    if not is_name(name) or not isinstance(members, dict) or "url" not in members:
        raise BookError(f"box {name!r} has no valid name or no url", cure)
    for member, value in members.items():
        if member not in _MEMBERS or not isinstance(value, str) or not value.isprintable() or not value:
            raise BookError(f"box {name}: {member!r} cannot be used", cure)
    if "token" in members and "token-file" in members:
        raise BookError(f"box {name} has both token and token-file", cure)
    return Entry(name, *(members.get(member) for member in _MEMBERS))  # type: ignore[arg-type]
