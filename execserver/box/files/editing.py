"""Files of a box in an editor here: fetched into a private folder, written back if they are still the same.

A file is written as a whole or not at all, and only over the version that was fetched.  What is not written
stays in the folder, and the person is told where: nothing typed is lost, whatever the box does.  Names here
come from the command line, never from the box.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from execserver.box.commands.notices import Notices
from execserver.box.commands.running import open_client, place_of
from execserver.box.connecting import Box, patience, reaching, unreachable
from execserver.box.files import editor
from execserver.box.shown import shown
from execserver.client.errors import FileTooLarge, NotFoundError, RequestFailed, TransportClosed
from execserver.leaving import CANNOT, Leave, failure, write
from execserver.protocol.paths import PathUri

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.protocol.files import FileVersion

MAX_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of a file: it goes back in one message."""
PATIENCE_S: Final = 300.0
_READINGS: Final = 3  # of a file that changes while it is read
_BY_SIGNAL: Final = 128
_CHANGED: Final = ("file has changed", "file exists")


@dataclass
class Draft:
    """A file of the box, as it was asked for, and its copy here; `version` None: it is not there yet."""

    asked: str
    place: PathUri
    content: bytes
    version: FileVersion | None
    local: str = ""


class Editing:
    """Owns the session with the box and the folder with the copies until `close`."""

    def __init__(self, box: Box, cp: Sequence[str]) -> None:
        """`cp` are the words before the operands of a copy to this box.  Raises Leave."""
        self._box = box
        self._cp = cp
        self._client = _opened(box)
        self._folder: str | None = None
        self._kept: list[Draft] = []  # their text is nowhere else

    def close(self) -> None:
        """End the session; remove the folder, unless it holds text that was not written."""
        self._client.close()
        if self._folder is not None and not self._kept:
            shutil.rmtree(self._folder, ignore_errors=True)

    def edit(self, files: Sequence[tuple[str, str]], words: Sequence[str]) -> int:
        """Edit files, each as it was asked for and by its path, with the editor that `words` start.

        Returns the exit status.  Raises Leave and OSError if nothing was edited.
        """
        if not self._client.extensions.fs_change:
            raise unreachable(
                f"{shown(self._box.name, 200)}: this server cannot replace a file as a whole",
                "copy it here and back: execserver cp",
            )
        drafts = [self._fetched(asked, path) for asked, path in files]
        self._folder = tempfile.mkdtemp(prefix="execserver-edit-")  # mode 0700
        for number, draft in enumerate(drafts):
            _place(draft, os.path.join(self._folder, str(number)))
        try:
            end = editor.run(words, [draft.local for draft in drafts])
        except OSError as error:
            text = f"{shown(words[0], 200)} cannot be started: {error.strerror}"
            raise failure(text, "name another one: EDITOR=... execserver edit ...") from None
        return self._take_back(drafts, end)

    def _fetched(self, asked: str, path: str) -> Draft:
        place = place_of(self._client, self._box, path)
        if os.path.basename(path) in ("", ".", "..") or path == "~":  # the box could name it as it likes
            raise failure(f"{shown(asked, 300)} is not the name of a file")
        with reaching(self._box):
            try:
                return self._read(asked, place)
            except NotFoundError:
                self._check_folder(asked, place)
                return Draft(asked, place, b"", None)
            except FileTooLarge:
                raise failure(f"{shown(asked, 300)} has more than {MAX_BYTES >> 20} MiB") from None
            except RequestFailed as error:
                raise failure(f"{shown(asked, 300)}: {shown(error.message, 1000)}") from None

    def _read(self, asked: str, place: PathUri) -> Draft:
        files = self._client.files
        with patience():
            is_folder = files.get_metadata(place).is_directory
        if is_folder:
            raise failure(f"{shown(asked, 300)} is a folder")
        for _ in range(_READINGS):
            version = files.stat(place).version
            content = files.read_file(place, max_bytes=MAX_BYTES)
            if files.stat(place).version == version and len(content) == version.size:
                return Draft(asked, place, content, version)
        text = f"{shown(asked, 300)} is no file that can be replaced, or is being written to just now"
        raise failure(text, "try again")

    def _check_folder(self, asked: str, place: PathUri) -> None:
        folder = PathUri.from_native(os.path.dirname(place.native()))
        try:
            if self._client.files.get_metadata(folder).is_directory:
                return
        except NotFoundError:
            pass
        words = shlex.join(["mkdir", "-p", os.fsdecode(folder.native())])
        raise failure(
            f"{shown(asked, 300)}: there is no folder for it", f"make it there: {shown(words, 1000)}"
        )

    def _take_back(self, drafts: Sequence[Draft], end: editor.EditorEnd) -> int:
        changed = {id(draft): text for draft in drafts if (text := _text(draft)) is not None}
        self._kept = [draft for draft in drafts if id(draft) in changed]
        if end.status or end.asked_by is not None:
            write(2, f"Error: the editor ended with status {end.status}: nothing is written\n")
            for draft in self._kept:
                self._tell(draft)
            return CANNOT if end.asked_by is None else _BY_SIGNAL + end.asked_by
        return max([self._write_back(draft, changed[id(draft)]) for draft in list(self._kept)], default=0)

    def _write_back(self, draft: Draft, text: bytes) -> int:
        try:
            if len(text) > MAX_BYTES:
                raise failure(f"{shown(draft.asked, 300)}: more than {MAX_BYTES >> 20} MiB cannot be written")
            self._replace(draft, text)
        except BaseException as error:  # an interrupt, too: whatever ends this, the text is told of
            if isinstance(error, Leave):
                write(2, error.stderr)
            self._tell(draft)
            if isinstance(error, Leave):
                return error.status
            raise
        self._kept.remove(draft)
        os.unlink(draft.local)
        return 0

    def _replace(self, draft: Draft, text: bytes) -> None:
        notices = Notices(self._box.name, None, has_escapes=False)
        self._client.watch_connection(notices.changed)  # not before: the editor had the screen
        try:
            with reaching(self._box):
                try:
                    self._send(draft, text)
                except TransportClosed:
                    self._client.close()
                    self._client = _opened(self._box)
                    self._send(draft, text)
        finally:
            notices.close()

    def _send(self, draft: Draft, text: bytes) -> None:
        is_new = draft.version is None
        files = self._client.files
        try:
            files.replace_file(draft.place, text, if_unchanged_since=draft.version, must_not_exist=is_new)
        except RequestFailed as error:
            if not error.message.startswith(_CHANGED):
                raise failure(f"{shown(draft.asked, 300)}: {shown(error.message, 1000)}") from None
            if self._holds(draft, text):
                return  # written already: the answer was lost with the connection
            how = "somebody else has made it meanwhile" if is_new else "it has changed meanwhile"
            raise failure(f"{shown(draft.asked, 300)}: {how}, and stays as it is") from None

    def _holds(self, draft: Draft, text: bytes) -> bool:
        try:
            return self._client.files.read_file(draft.place, max_bytes=MAX_BYTES) == text
        except (RequestFailed, FileTooLarge):
            return False

    def _tell(self, draft: Draft) -> None:
        words = shlex.join([*self._cp, draft.local, draft.asked])
        write(2, f"  your text is in {shown(draft.local)}\n")
        write(2, f"  What to do: look at what is there; to put yours in its place: {shown(words)}\n")


def edit(box: Box, cp: Sequence[str], files: Sequence[tuple[str, str]], words: Sequence[str]) -> int:
    """Edit files and return the exit status; as `Editing`.  Raises Leave."""
    editing = Editing(box, cp)
    try:
        return editing.edit(files, words)
    except OSError as error:
        raise failure(f"a copy cannot be kept here: {error.strerror}", "look at TMPDIR") from None
    finally:
        editing.close()


def _opened(box: Box) -> ExecServerClient:
    """Connect; a request takes PATIENCE_S at most, which is long for a file on a slow line."""
    return open_client(box, max_message_bytes=2 * MAX_BYTES, request_timeout=PATIENCE_S)


def _place(draft: Draft, folder: str) -> None:
    """Make the copy; of a file that is not there yet only the name for it."""
    os.mkdir(folder, 0o700)
    draft.local = os.path.join(folder, os.path.basename(os.fsdecode(draft.place.native())))
    if draft.version is None:
        return
    fd = os.open(draft.local, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(draft.content)


def _text(draft: Draft) -> bytes | None:
    """Return what the editor left, None for what is as it was or was removed."""
    try:
        with open(draft.local, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    return None if draft.version is not None and text == draft.content else text
