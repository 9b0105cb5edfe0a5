"""Where rules come from: which files, how they are read, and what is said when one is broken.

First the rules of the machine, then those of the person: every regular file with the ending `.rules` that
lies directly in a folder, by name (section 6 of the shell tool contract).  They are read once, before
anything else is done; a broken file ends the program.  Rules in a requirements file are not read: nobody
could check what the reference makes of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence

from execserver.mcp.rules_process import EvaluationError, Source, evaluate_all
from execserver.rules.policy import Policy

MACHINE_FOLDER = "/etc/codex/rules"
MAX_FILE_BYTES = 1 << 20
MAX_FILES = 1000

_ENDING = ".rules"


class RulesError(Exception):
    """Rules cannot be had; the text is what the person is told after `Error: `."""


def rules_folders(environ: Mapping[str, str]) -> list[str]:
    """Return the folders that rules are read from, the least specific first.

    Raises RulesError if CODEX_HOME names no folder.
    """
    named = environ.get("CODEX_HOME", "")
    if not named:
        home = environ.get("HOME") or os.path.expanduser("~")
        return [MACHINE_FOLDER, os.path.join(home, ".codex", "rules")]
    if not os.path.isdir(named):
        missing = "is not a directory" if os.path.exists(named) else "does not exist"
        raise RulesError(
            "failed to resolve codex_home for execpolicy\n\nCaused by:\n"
            f'    CODEX_HOME points to "{named}", but that path {missing}'
        )
    return [MACHINE_FOLDER, os.path.join(os.path.realpath(named), "rules")]


def load_rules(folders: Iterable[str]) -> Policy:
    """Return the rules of all files in some folders; a folder that is not there has none.

    Raises RulesError.  Blocks this thread while the files are evaluated, which is bounded.
    """
    return load_files([path for folder in folders for path in rules_files(folder)])


def load_files(paths: Sequence[str]) -> Policy:
    """Return the rules of some files, read in this order.  Raises RulesError."""
    if len(paths) > MAX_FILES:
        raise RulesError(f"{len(paths)} rules files are more than {MAX_FILES}")
    if not paths:
        return Policy()
    try:
        return evaluate_all([Source(path, _read(path)) for path in paths])
    except EvaluationError as error:
        raise RulesError(f"failed to parse rules file {error.path}: {error}") from None


def rules_files(folder: str) -> list[str]:
    """Return the paths of the rules files in a folder, by name.  Raises RulesError if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if _is_rules_file(entry)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RulesError(
            f"failed to read rules files from {folder}: {error.strerror} (os error {error.errno})"
        ) from None
    return sorted(found)


def _is_rules_file(entry: os.DirEntry[str]) -> bool:
    stem, ending = os.path.splitext(entry.name)
    return bool(stem) and ending == _ENDING and entry.is_file(follow_symlinks=False)


def _read(path: str) -> str:
    try:
        # A named pipe must not hold us up.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RulesError(f"failed to read rules file {path}: it is not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise RulesError(f"failed to read rules file {path}: it is larger than {MAX_FILE_BYTES} bytes")
        return data.decode()
    except OSError as error:
        why = f"{error.strerror} (os error {error.errno})"
        raise RulesError(f"failed to read rules file {path}: {why}") from None
    except UnicodeDecodeError:
        raise RulesError(f"failed to read rules file {path}: stream did not contain valid UTF-8") from None
