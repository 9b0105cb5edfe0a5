"""Finds paths by patterns below a directory; directories that nothing can match below are not entered.

The patterns are those of a sandbox policy (`sandbox/policy/globs.py`), matched without going back further
than the last `*`.  A name costs the event loop at most some 20 ms, with the worst pattern and longest name.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from execserver.protocol.errors import InvalidParams
from execserver.protocol.files import FsWalkEntry, FsWalkEntryKind
from execserver.protocol.trees import FsGlobParams, FsGlobResponse
from execserver.sandbox.policy.globs import Glob, GlobError, compile_glob
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles
from execserver.services.trees.ignoring import Ignored
from execserver.services.trees.pages import TreePage

MAX_PATTERN = 1024  # characters, of all alternatives together: each name is matched with all of them
_REMEMBERED = 1000  # directories whose state of matching is remembered

_KINDS = {True: FsWalkEntryKind.DIRECTORY, False: FsWalkEntryKind.FILE}


class PathMatcher:
    """One pattern, relative to the root of a walk."""

    def __init__(self, pattern: str) -> None:
        """Raises InvalidParams for a pattern that is none, is absolute, or has too many alternatives."""
        if pattern.startswith("/") or not pattern or len(pattern) > MAX_PATTERN or "\0" in pattern:
            raise InvalidParams(f"a pattern is relative and has 1 to {MAX_PATTERN} characters")
        try:
            self._globs: Sequence[Glob] = compile_glob(b"/" + pattern.encode("utf-8", "surrogateescape"))
        except GlobError as error:
            raise InvalidParams(f"malformed pattern: {error}") from None
        except UnicodeEncodeError:
            raise InvalidParams("malformed pattern: a lone surrogate") from None
        if sum(len(glob.text) for glob in self._globs) > MAX_PATTERN:
            raise InvalidParams(
                f"malformed pattern: its alternatives have more than {MAX_PATTERN} characters"
            )
        self._states: dict[bytes, list[_State]] = {}

    def match(self, below: bytes) -> tuple[bool, bool]:
        """Return whether a path below the root matches, and whether one below it could."""
        states, matched = self._advance(below)
        return matched, any(states)

    def _advance(self, below: bytes) -> tuple[list[_State], bool]:
        parent, _, last = below.rpartition(b"/")
        name = last.decode("utf-8", "surrogateescape")
        states, matched = [], False
        for state in self._state_of(parent):
            after, here = state.step(name)
            states.append(after)
            matched = matched or here
        return states, matched

    def _state_of(self, directory: bytes) -> list[_State]:
        """Return the states in a directory; those of the directories above it are usually remembered."""
        if not directory:
            return [_State(glob) for glob in self._globs]
        states = self._states.get(directory)
        if states is None:
            states = self._advance(directory)[0]
            if len(self._states) >= _REMEMBERED:
                self._states.clear()
            self._states[directory] = states
        return states


class _State:
    """How far one glob has come on the way to a directory; false where nothing can match below."""

    __slots__ = ("_glob", "_names", "_positions")

    def __init__(self, glob: Glob) -> None:
        self._glob = glob
        # The names of the literal beginning of the pattern that are still to come.
        self._names = [name.decode("utf-8", "surrogateescape") for name in glob.prefix.split(b"/") if name]
        self._positions: frozenset[int] = glob.start()

    def __bool__(self) -> bool:
        return bool(self._positions)

    def step(self, name: str) -> tuple[_State, bool]:
        """Return the state in a directory of this one, and whether the pattern matches there."""
        after = copy(self)
        matched = False
        if self._names:
            after._names = self._names[1:]
            after._positions = self._positions if name == self._names[0] else frozenset()
        else:
            after._positions, matched = self._glob.step(self._positions, name)
        return after, matched


def glob_paths(
    service: FileService, files: FileService | ConfinedFiles, params: FsGlobParams
) -> FsGlobResponse:
    """Return one page of what matches.  Raises OSError and RpcError for the root only."""
    matcher = PathMatcher(params.pattern)
    page = TreePage(files, params.path, params.after, params.max_entries)
    ignored = Ignored(service, files, page.root, page.refuse) if params.gitignore else None
    found: list[FsWalkEntry] = []
    for below, is_directory in page:
        if ignored is not None and ignored.match(below, is_directory):
            page.prune()
            continue
        matches, may_below = matcher.match(below)
        if matches:
            found.append(FsWalkEntry(path=page.uri(below), kind=_KINDS[is_directory]))
            page.count()
        if not may_below:
            page.prune()
    return FsGlobResponse(entries=tuple(found), errors=tuple(page.errors), next=page.next)
