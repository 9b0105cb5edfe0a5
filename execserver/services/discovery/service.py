"""The discoveries of one server: few at a time, and no answer that a client could not take."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from gevent.lock import BoundedSemaphore
from msgspec import Raw

from execserver.protocol.discovery import WireCapabilityRootsDiscoverParams
from execserver.protocol.errors import InternalError
from execserver.protocol.record import encode_record
from execserver.runtime_paths import codex_home
from execserver.services.discovery import roots
from execserver.services.files.filesystem import FileService
from execserver.services.machine.environment import user_home

if TYPE_CHECKING:
    from execserver.services.files.sandboxed import ConfinedFiles

AT_A_TIME = 2  # each may hold the contents of all its files; further ones wait
MAX_ANSWER_BYTES = 64 * 1024 * 1024 - 64 * 1024  # a larger message ends a real client's connection


class Discovery:
    """Searches folders for plugins and skills."""

    def __init__(self, files: FileService, environ: Mapping[bytes, bytes]) -> None:
        self._files = files
        self._environ = environ
        self._turns = BoundedSemaphore(AT_A_TIME)

    def in_roots(self, operations: roots.Operations, params: WireCapabilityRootsDiscoverParams) -> Raw:
        """Answer `capabilityRoots/discoverV1`; `operations` gives what reads within a root's sandbox."""
        with self._turns:
            answer = encode_record(roots.discover(self._files, operations, params))
        if len(answer) > MAX_ANSWER_BYTES:
            raise InternalError(f"the result is too large: limit is {MAX_ANSWER_BYTES} bytes")
        return Raw(answer)

    def of_machine(self, operations: FileService | ConfinedFiles) -> Raw:
        """Answer `capabilities/discoverV2`; `operations` reads within the sandbox."""
        # With PyYAML's parser: takes some 50 ms the first time.
        self._files.in_thread(lambda pause: import_module("execserver.protocol.skill_text"))
        from execserver.services.discovery.machine import Places, Search

        home = user_home(self._environ)
        places = Places(home, codex_home(self._environ, home))
        with self._turns:
            return Raw(Search(self._files, operations, places).run().encode())
