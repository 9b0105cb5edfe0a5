"""The configuration files of this machine, for `environmentConfig/read` (wire contract, section 10).

Files are read anew for each request, and nothing is merged: a client gets the wanted parts of every file.  A
project's files count only where the user's own file trusts the project.  Each file has at most 1 MiB, and is
parsed in a thread unless it is small, since the parser takes a second for that much.
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Iterator, Mapping

import gevent

from execserver.core.config_layers import (
    DEFAULT_MARKERS,
    Path,
    is_trusted,
    of_project,
    root_markers,
    selected,
)
from execserver.core.toml_errors import TomlFault
from execserver.core.toml_text import Table, to_text
from execserver.files.reading import FileTooLarge
from execserver.protocol.discovery import (
    ConfigLayer,
    ConfigStack,
    EnvironmentConfigReadParams,
    EnvironmentConfigReadResponse,
)
from execserver.protocol.error_texts import utf8_fault
from execserver.protocol.errors import InternalError, InvalidParams, InvalidRequest, NotFound, RpcError
from execserver.protocol.paths import PathUri, display
from execserver.runtime_paths import codex_home
from execserver.services.files.filesystem import FileService
from execserver.services.files.small import read_small
from execserver.services.machine.environment import user_home

MAX_FILE_BYTES = 1024 * 1024
_INLINE_BYTES = 4096  # parsed at once, in 4 ms at most
_FAILED = "failed to load executor-local config: "
_SYSTEM = b"/etc/codex"
_NAME = b"config.toml"
_WORKTREES = b"worktrees"
_POINTER_BYTES = 8192  # of the file `.git` in a worktree


class ConfigFiles:
    """Reads the files of one machine; `system` is the folder of its administrator."""

    def __init__(self, files: FileService, environ: Mapping[bytes, bytes], system: bytes = _SYSTEM) -> None:
        self._files = files
        self._system = system
        self._environ = environ

    def read(self, params: EnvironmentConfigReadParams) -> EnvironmentConfigReadResponse:
        """Return the wanted parts of every file.  Raises InvalidParams, InternalError for a broken file."""
        wanted, required = params.config_paths, params.requirements_paths
        if not wanted and not required:
            raise InvalidParams("at least one config or requirements path is required")
        if () in wanted or () in required:
            raise InvalidParams("TOML paths must contain at least one key segment")
        try:
            cwd = params.cwd.native()
        except InvalidRequest as refused:
            raise InvalidParams(refused.message) from None
        home = user_home(self._environ)
        return EnvironmentConfigReadResponse(
            user_home_dir=None if home is None else PathUri.from_native(home),
            codex_home_dir=PathUri.from_native(self._codex_home(home)),
            hostname=socket.gethostname() or None,
            config=self._config(self._codex_home(home), cwd, wanted),
            requirements=self._requirements(required),
        )

    def _codex_home(self, home: bytes | None) -> bytes:
        return codex_home(self._environ, home)

    def _config(self, home: bytes, cwd: bytes, wanted: tuple[Path, ...]) -> ConfigStack:
        system_path, user_path = os.path.join(self._system, _NAME), os.path.join(home, _NAME)
        managed_path = os.path.join(self._system, b"managed_config.toml")
        system, user = self._own(system_path), self._own(user_path)
        layers = list(_layer("system", system_path, selected(system, wanted)))
        index = len(layers)
        layers += _layer("user", user_path, selected(user, wanted))
        for path, table in self._projects(cwd, home, user, system):
            layers += _layer("project", path, selected(of_project(table), wanted))
        layers += _layer(
            "legacy managed_config.toml", managed_path, selected(self._own(managed_path), wanted)
        )
        return ConfigStack(layers=tuple(layers), cloud_insertion_index=index)

    def _requirements(self, wanted: tuple[Path, ...]) -> ConfigStack:
        if not wanted:
            return ConfigStack()
        path = os.path.join(self._system, b"requirements.toml")
        try:
            table = self._table(path)
        except _Broken as broken:
            text = f"failed to parse requirements layer {display(path)}: {broken.fault.with_snippet()}"
            raise InternalError(_FAILED + text) from None
        except _Unread as unread:
            text = f"failed to read requirements layer {display(path)}: {unread}"
            raise InternalError(_FAILED + text) from None
        layers = tuple(_layer("", path, selected(table, wanted)))
        return ConfigStack(layers=layers, cloud_insertion_index=len(layers))

    def _own(self, path: bytes) -> Table:
        """Read a file of the user or of the administrator."""
        try:
            return self._table(path)
        except _Broken as broken:
            raise InternalError(f"{_FAILED}{display(path)}:{broken.fault.short()}") from None
        except _Unread as unread:
            raise InternalError(f"{_FAILED}Failed to read config file {display(path)}: {unread}") from None

    def _projects(
        self, cwd: bytes, codex_home: bytes, user: Table, system: Table
    ) -> Iterator[tuple[bytes, Table]]:
        """Yield the files of the trusted projects from the root of the project down to a directory."""
        root = self._root(cwd, root_markers(user, system))
        repository = self._repository(cwd)
        for folder in reversed([*_up_to(cwd, root)]):
            gevent.sleep(0)
            own = os.path.join(folder, b".codex")
            if own == codex_home or not is_trusted(user, _names(folder, root, repository)):
                continue
            path = os.path.join(own, _NAME)
            try:
                yield path, self._table(path)
            except _Broken as broken:
                text = f"Error parsing project config file {display(path)}: {broken.fault.with_snippet()}"
                raise InternalError(_FAILED + text) from None
            except _Unread as unread:
                text = f"Failed to read project config file {display(path)}: {unread}"
                raise InternalError(_FAILED + text) from None

    def _root(self, cwd: bytes, markers: tuple[str, ...]) -> bytes:
        """Return the nearest directory with a marker in it, or `cwd` itself."""
        for folder in _up_to(cwd, b"/"):
            if any(self._kind(os.path.join(folder, os.fsencode(marker))) is not None for marker in markers):
                return folder
        return cwd

    def _repository(self, cwd: bytes) -> bytes | None:
        """Return the directory of the repository's main working tree, for any of its working trees."""
        for folder in _up_to(cwd, b"/"):
            dot_git = os.path.join(folder, os.fsencode(DEFAULT_MARKERS[0]))
            kind = self._kind(dot_git)
            if kind is None:
                continue
            return folder if kind else self._main_tree(dot_git) or folder
        return None

    def _main_tree(self, dot_git: bytes) -> bytes | None:
        """Return the main working tree of a worktree, whose `.git` is a file that leads there."""
        try:
            text = read_small(self._files, self._files, dot_git, _POINTER_BYTES)
        except RpcError:
            return None
        word, _, place = text.strip().partition(b": ")
        folder = os.path.normpath(os.path.join(os.path.dirname(dot_git), place))
        git, kind = os.path.split(os.path.dirname(folder))
        return os.path.dirname(git) if word == b"gitdir" and kind == _WORKTREES else None

    def _kind(self, path: bytes) -> bool | None:
        """Return whether a path leads to a directory, None if to nothing."""
        try:
            return self._files.get_metadata(path)[0]
        except (OSError, RpcError):
            return None

    def _table(self, path: bytes) -> Table:
        """Return what is in a file, nothing if there is none.  Raises _Broken and _Unread."""
        try:
            content = read_small(self._files, self._files, path, MAX_FILE_BYTES)
            text = content.decode("utf-8").removeprefix("\ufeff")
        except NotFound:
            return {}
        except FileTooLarge:
            raise _Unread(f"it has more than {MAX_FILE_BYTES} bytes") from None
        except UnicodeDecodeError as error:
            raise _Unread(utf8_fault(error)) from None
        except RpcError as error:
            if error.message.startswith(_NOT_A_DIRECTORY):
                return {}
            raise _Unread(error.message) from None
        if len(text) <= _INLINE_BYTES:
            return _parsed(text)
        return self._files.in_thread(lambda pause: _parsed(text))


_NOT_A_DIRECTORY = "Not a directory"


class _Broken(Exception):
    """A file is not TOML."""

    def __init__(self, fault: TomlFault) -> None:
        super().__init__(fault.short())
        self.fault = fault


class _Unread(Exception):
    """A file cannot be read; the text says why."""


def _parsed(text: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _Broken(TomlFault(text, str(error))) from None
    except RecursionError:
        raise _Broken(TomlFault(text, "too many values in each other (at line 1, column 1)")) from None


def _layer(kind: str, path: bytes, table: Table) -> Iterator[ConfigLayer]:
    if table:
        source = f"{kind} ({display(path)})" if kind else display(path)
        folder = PathUri.from_native(os.path.dirname(path))
        yield ConfigLayer(source=source, base_dir=folder, toml=to_text(table))


def _up_to(folder: bytes, last: bytes) -> Iterator[bytes]:
    """Yield a directory and its parents up to one of them."""
    yield folder
    while folder not in (last, b"/"):
        folder = os.path.dirname(folder)
        yield folder


def _names(folder: bytes, root: bytes, repository: bytes | None) -> Iterator[bytes]:
    """Yield the names under which a user may have said something about a directory's project."""
    for name in (folder, root, repository):
        if name is not None:
            yield name
            yield os.path.realpath(name)
