"""Which paths of a walk git would ignore: `.gitignore` files, `.git/info/exclude`, and `.git` itself.

The files are read as any file of the request, so with its sandbox and its limits; what may not be read above
the root of the walk does not count.  The rules of all files on the way to a path are in memory, at most
`MAX_RULES`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from gevent import sleep

from execserver.core.ignore_rules import Rule, TooMuch, rules_in
from execserver.files.reading import FileTooLarge
from execserver.files.walk import MAX_DEPTH
from execserver.protocol.errors import InvalidRequest, NotFound, RpcError
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import ConfinedFiles
from execserver.services.files.small import read_small

MAX_FILE_BYTES = 256 * 1024
MAX_RULES = 5000  # of all files on the way to a path
_TURN_S = 0.002  # between two chances for others to run
_GIT = b".git"
_NAME = b".gitignore"
_EXCLUDE = b".git/info/exclude"

Refuse = Callable[[bytes, RpcError], None]


class _Level(NamedTuple):
    """A directory on the way: its path, whether it is ignored, and the rules of its file."""

    path: bytes
    ignored: bool
    rules: tuple[Rule, ...]


class Ignored:
    """The rules for one walk, which asks depth first; a file above a limit is told to `refuse`."""

    def __init__(
        self, service: FileService, files: FileService | ConfinedFiles, root: bytes, refuse: Refuse
    ) -> None:
        """`root` is a resolved path; the rules of the repository that it is in count as well."""
        self._service = service
        self._files = files
        self._root = root.rstrip(b"/")
        self._refuse = refuse
        self._turn = time.monotonic()
        self._levels: list[_Level] = []
        above, has_folder = self._above()
        rules = self._rules_of(above[0], _EXCLUDE) if has_folder else ()
        self._excluded = _Level(above[0], False, rules)
        for path in above:
            self._levels.append(_Level(path, False, self._rules_of(path, _NAME)))
        self._fixed = len(self._levels)

    def match(self, below: bytes, is_directory: bool) -> bool:
        """Tell whether git ignores a path below the root, or a directory on the way to it."""
        *parents, name = below.split(b"/")
        if name == _GIT:
            return True
        level = self._enter(parents)
        return level.ignored or self._is_ignored(level.path + b"/" + name, is_directory)

    def _enter(self, parents: list[bytes]) -> _Level:
        """Return the level of a directory, with those on the way to it on the stack."""
        at = self._fixed
        for name in parents:
            path = self._levels[at - 1].path + b"/" + name
            if at == len(self._levels) or self._levels[at].path != path:
                del self._levels[at:]
                ignored = (
                    self._levels[-1].ignored or name == _GIT or self._is_ignored(path, is_directory=True)
                )
                self._levels.append(_Level(path, ignored, ()))
                if not ignored:
                    self._levels[-1] = _Level(path, ignored, self._rules_of(path, _NAME))
            at += 1
        del self._levels[at:]
        return self._levels[-1]

    def _is_ignored(self, path: bytes, is_directory: bool) -> bool:
        name = path.rpartition(b"/")[2]
        for level in (*reversed(self._levels), self._excluded):
            below = path[len(level.path) + 1 :]
            for rule in level.rules:
                if rule.matches(below, name, is_directory):
                    return rule.excludes
                self._let_others_run()
        return False

    def _above(self) -> tuple[list[bytes], bool]:
        """Return the directories from the top of the repository to the root, the root alone outside one.

        Also returns whether its `.git` is a directory: that of a work tree or submodule is a file.
        """
        path, found = self._root, [self._root]
        for _ in range(MAX_DEPTH):
            try:
                return found[::-1], self._files.get_metadata(path + b"/" + _GIT)[0]
            except (OSError, RpcError):
                pass  # not there, or not for this client
            if not path:
                break
            path = path.rpartition(b"/")[0]
            found.append(path)
        return [self._root], False

    def _rules_of(self, directory: bytes, name: bytes) -> tuple[Rule, ...]:
        path = directory + b"/" + name
        try:
            content = read_small(self._service, self._files, path, MAX_FILE_BYTES)
            rules = []
            room = MAX_RULES - sum(len(level.rules) for level in self._levels)
            for rule in rules_in(content):
                rules.append(rule)
                self._let_others_run()
                if len(rules) > room:
                    raise TooMuch(f"with the files above it, it has more than {MAX_RULES} rules")
            return tuple(rules)
        except NotFound:
            pass
        except FileTooLarge:
            self._tell(path, InvalidRequest(f"not read: it has more than {MAX_FILE_BYTES} bytes"))
        except TooMuch as error:
            self._tell(path, InvalidRequest(f"not read: {error}"))
        except RpcError as error:
            self._tell(path, error)
        return ()

    def _tell(self, path: bytes, error: RpcError) -> None:
        if path.startswith(self._root + b"/"):
            self._refuse(path[len(self._root) + 1 :], error)

    def _let_others_run(self) -> None:
        if time.monotonic() - self._turn > _TURN_S:
            sleep(0)
            self._turn = time.monotonic()
