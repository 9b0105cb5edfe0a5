"""The command line of the shell tool's server (shell tool contract, section 1)."""

from __future__ import annotations

from typing import NamedTuple


class Options(NamedTuple):
    """The command line as values, `bash` found already.

    `execve` is the wrapper for shells that are patched, None for this program's own.
    `preserve_program_paths`: rules are matched against the whole path of a program only.
    """

    bash: str
    execve: str | None = None
    preserve_program_paths: bool = False
