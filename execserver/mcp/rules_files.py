"""Where exec rules come from: which files, how they are read, and the error if one is wrong.

First the rules of the machine, then those of the user: every regular file with the ending `.rules` directly
in a directory, by name (shell tool contract).  Last the administrator rules of the requirements file.  They
are read once, before anything else is done; a broken file ends the program.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence

from execserver.mcp.requirements_rules import REQUIREMENTS_FILE, RequirementsError, requirement_rules
from execserver.mcp.rules_process import EvaluationError, Source, evaluate_all
from execserver.rules.policy import Policy

MACHINE_FOLDER = "/etc/codex/rules"
MAX_FILE_BYTES = 1 << 20
MAX_FILES = 1000

_ENDING = ".rules"


class RulesError(Exception):
    """The rules cannot be loaded; the text is printed for the user after `Error: `."""


def rules_folders(environ: Mapping[str, str]) -> list[str]:
    """Return the directories that rules are read from, the least specific first.

    Raises RulesError if CODEX_HOME names no directory.
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


def load_rules(folders: Iterable[str], requirements: str = REQUIREMENTS_FILE) -> Policy:
    """Return the rules of all files in some directories, and those in a requirements file.

    Directories and files may be missing.  Raises RulesError.  Blocks this thread while the files are
    evaluated, for a limited time.
    """
    policy = load_files([path for folder in folders for path in rules_files(folder)])
    try:
        required = requirement_rules(requirements, _read(requirements, "Failed to read requirements file"))
    except FileNotFoundError:
        return policy
    except RequirementsError as error:
        raise RulesError(str(error)) from None
    # Their place in the order matters little: the strictest rule decides, and these only restrict.
    return Policy([*policy.rules, *required], policy.executables) if required else policy


def load_files(paths: Sequence[str]) -> Policy:
    """Return the rules of some files, read in this order.  Raises RulesError."""
    if len(paths) > MAX_FILES:
        raise RulesError(f"{len(paths)} rules files are more than {MAX_FILES}")
    if not paths:
        return Policy()
    try:
        return evaluate_all([Source(path, _read_rules(path)) for path in paths])
    except EvaluationError as error:
        raise RulesError(f"failed to parse rules file {error.path}: {error}") from None


def rules_files(folder: str) -> list[str]:
    """Return the paths of the rules files in a directory, by name; an empty list if it does not exist.

    Raises RulesError if it cannot be read.
    """
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


def _read_rules(path: str) -> str:
    failed = "failed to read rules file"
    try:
        return _read(path, failed)
    except FileNotFoundError as error:
        raise RulesError(f"{failed} {path}: {_why(error)}") from None


def _read(path: str, failed: str) -> str:
    """Return the text of a file.

    Raises FileNotFoundError, and RulesError with a text that begins with `failed` for everything else.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RulesError(f"{failed} {path}: it is not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise RulesError(f"{failed} {path}: it is larger than {MAX_FILE_BYTES} bytes")
        return data.decode()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RulesError(f"{failed} {path}: {_why(error)}") from None
    except UnicodeDecodeError:
        raise RulesError(f"{failed} {path}: stream did not contain valid UTF-8") from None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # else opening a named pipe would wait for its writer


def _why(error: OSError) -> str:
    return f"{error.strerror} (os error {error.errno})"
