"""Files and trees from here to a box and back, as an archive that flows through `tar` there.

The box is trusted with nothing here: what it sends goes through `unpacking`, which stays below the target.
Its messages are shown escaped, at most 64 KiB of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

import gevent

from execserver.box.commands.running import NOT_FOUND, Command, start
from execserver.box.connecting import Box, patience, reaching, unreachable
from execserver.box.descriptors import Sink, Source
from execserver.box.shown import shown
from execserver.box.transfer.copies import refuse_special, special
from execserver.box.transfer.progress import Progress
from execserver.box.trees import packing, tar
from execserver.box.trees.tar import BadArchive, Reader
from execserver.box.trees.unpacking import Unpacker
from execserver.client.errors import ExecServerError, OutputGap, StdinUnavailable, WaitTimeout
from execserver.client.rules.event_log import Output
from execserver.leaving import Leave, failure, unwritable, write
from execserver.own_process import keep_freed_buffers

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient
    from execserver.client.process import RemoteProcess

_MAX_SAID: Final = 64 * 1024
# GNU's default form has whole seconds only.
_PACK: Final = (
    'command -v tar >/dev/null || exit 127; cd -- "$1" || exit; if tar --version 2>/dev/null | grep -q GNU; '
    'then exec tar --format=posix -cf - "./$2"; else exec tar -cf - "./$2"; fi'
)
_KIND: Final = 'if [ -d "$1" ]; then echo d; elif [ -f "$1" ]; then echo f; elif [ -e "$1" ]; then echo s; fi'
_ENOUGH: Final = 256 * 1024  # bytes for a request


class Copier:
    """Copies between this machine and one box; counts what was left out, which makes the status 1."""

    def __init__(self, client: ExecServerClient, box: Box, *, quiet: bool, silence_s: float) -> None:
        """`silence_s`: how long a `tar` there may say nothing."""
        self._box = box
        self._silence_s = silence_s
        self._quiet = quiet
        self._client = client
        keep_freed_buffers()
        self._said = 0
        self._begun = b""  # of a line of messages
        self.failures = 0

    def upload(self, sources: Sequence[str], target: str) -> None:
        """Copy files and trees to a path on the box.  Raises Leave."""
        if not self._client.extensions.process_close_stdin:
            raise unreachable(
                f"{shown(self._box.name, 200)}: this server cannot be told where a file ends",
                "let execserver listen there",
            )
        if list(sources) == ["-"]:
            self._feed(["sh", "-c", 'cat > "$1"', "sh", target], _stdin(), 0)
            return
        kind = self._kind(target)
        if kind == b"s":
            raise special(target, f"execserver cp - {shown(self._box.name, 200)}:{shown(target, 300)} < FILE")
        into = kind == b"d"
        if len(sources) > 1 and not into:
            raise failure(f"{shown(target, 300)} is no folder on {self._box.name}", "name one that exists")
        folder = target if into else os.path.dirname(target.rstrip("/")) or "."
        new = os.path.basename(target.rstrip("/"))
        names = [os.fsencode(os.path.basename(os.path.abspath(each)) if into else new) for each in sources]
        try:
            total = sum(packing.size_of(os.fsencode(each)) for each in sources)
        except OSError as error:
            raise failure(f"{shown(os.fsencode(error.filename), 300)}: {error.strerror}") from None
        self._feed(["tar", "-x", "-p", "-o", "-f", "-", "-C", folder], self._archive(sources, names), total)

    def download(self, sources: Sequence[str], target: str) -> None:
        """Copy files and trees of the box to a path here.  Raises Leave."""
        if target == "-":
            self._print(sources)
            return
        refuse_special(target)
        into = os.path.isdir(target)
        if len(sources) > 1 and not into:
            raise failure(f"{shown(target, 300)} is no folder", "name one that exists")
        for source in sources:
            path = os.path.normpath(source)
            base = os.path.basename(path)
            if base in ("", ".", ".."):
                raise failure(
                    f"{shown(source, 300)} has no name of its own", "name the folder by its full path"
                )
            name = base if into else os.path.basename(target.rstrip("/"))
            folder = target if into else os.path.dirname(target.rstrip("/")) or "."
            self._fetch(os.path.dirname(path) or ".", base, folder, name)

    def _print(self, sources: Sequence[str]) -> None:
        sink = Sink(1)
        try:
            for source in sources:
                self.failures += self._drain(["cat", "--", source], sink.write) != 0
        except OSError as error:
            raise unwritable(error) from None
        finally:
            sink.close()

    def _fetch(self, parent: str, base: str, folder: str, name: str) -> None:
        try:
            unpacker = Unpacker(folder, os.fsencode(base), os.fsencode(name), self._say)
        except OSError as error:
            raise failure(f"{shown(os.fsencode(folder), 300)}: {error.strerror}") from None
        reader = Reader()

        def take(data: bytes) -> None:
            for item in reader.feed(data):
                unpacker.take(item)

        try:
            status = self._drain(["sh", "-c", _PACK, "sh", parent, base], take, self._silence_s)
            if status == NOT_FOUND:
                raise Leave(NOT_FOUND, stderr=f"Error: there is no tar on {shown(self._box.name, 200)}\n")
            self.failures += status != 0
            if not reader.is_complete:
                raise BadArchive("it is cut off")
            unpacker.finish()
        except BadArchive as error:
            raise failure(f"the archive from {shown(self._box.name, 200)} is refused: {error}") from None
        except OSError as error:
            raise failure(f"cannot write below {shown(os.fsencode(folder), 300)}: {error.strerror}") from None
        finally:
            unpacker.close()

    def _archive(self, sources: Sequence[str], names: Sequence[bytes]) -> Iterator[bytes]:
        for source, name in zip(sources, names, strict=True):
            yield from packing.packed(os.fsencode(source), name, self._say)
        yield tar.END

    def _kind(self, path: str) -> bytes:
        """Return d, f, s (neither) or nothing."""
        answer = _Short()
        with reaching(self._box), patience():
            self._drain(["sh", "-c", _KIND, "sh", path], answer.take)
        return answer.text.strip()

    def _feed(self, argv: Sequence[str], pieces: Iterator[bytes], total: int) -> None:
        process = self._start(argv, pipe_stdin=True)
        progress = Progress(total, self._quiet, may_pause=not total)
        stopped: list[Leave] = []
        reader = gevent.spawn(self._followed, process, stopped)
        try:
            with reaching(self._box):
                process.write_all(_counted(_joined(pieces), progress))
                process.close_stdin()
        except StdinUnavailable:
            pass  # it has ended: the status says how
        except Leave:
            if not stopped:
                raise
        finally:
            progress.close()
        reader.get()
        if stopped:
            raise stopped[0]
        with reaching(self._box):
            self.failures += process.wait() != 0

    def _drain(
        self, argv: Sequence[str], take: Callable[[bytes], None], silence_s: float | None = None
    ) -> int:
        """Follow a command to its end, which may say nothing for so long; return its status."""
        process = self._start(argv, pipe_stdin=False)
        progress = Progress(0, self._quiet, may_pause=silence_s is None)

        def counted(data: bytes) -> None:
            take(data)
            progress.count(len(data))

        try:
            self._follow(process, counted, silence_s)
        finally:
            progress.close()
        with reaching(self._box):
            return process.wait()

    def _start(self, argv: Sequence[str], *, pipe_stdin: bool) -> RemoteProcess:
        return start(self._client, self._box, Command(argv, env={"LC_ALL": "C"}, pipe_stdin=pipe_stdin))

    def _followed(self, process: RemoteProcess, stopped: list[Leave]) -> None:
        """Follow a command that only takes; add why that is over early, which then stops the writer, too."""
        try:
            self._follow(process, _Short().take)
        except Leave as leave:
            stopped.append(leave)  # first: the writer may notice the end before this returns
            self._client.detach()

    def _follow(
        self, process: RemoteProcess, take: Callable[[bytes], None], silence_s: float | None = None
    ) -> None:
        with reaching(self._box):
            while True:
                try:
                    event = process.next_event(silence_s)
                except OutputGap as gap:
                    raise ExecServerError(f"{gap}: the copy is not whole") from None
                except WaitTimeout:
                    raise ExecServerError(f"its `tar` has said nothing for {silence_s:g} s") from None
                if event is None:
                    self._pass_on(b"\n" if self._begun else b"")
                    return
                if isinstance(event, Output) and event.stream == "stderr":
                    self._pass_on(event.data)
                elif isinstance(event, Output):
                    take(event.data)

    def _pass_on(self, data: bytes) -> None:
        room = max(0, _MAX_SAID - self._said)
        self._said += len(data)
        *lines, self._begun = (self._begun + data[:room]).split(b"\n")
        for line in lines:
            write(2, f"{shown(self._box.name, 200)}: {shown(line, 1000)}\n")

    def _say(self, text: str) -> None:
        self.failures += 1
        write(2, f"execserver: {text}\n")


def _stdin() -> Iterator[bytes]:
    with closing(Source(0)) as source:
        while data := source.read():
            yield data


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield larger pieces: each is a request, and a tree has many small files."""
    held = bytearray()
    for piece in pieces:
        if len(piece) >= _ENOUGH:
            if held:
                yield bytes(held)
                held.clear()
            yield piece
            continue
        held += piece
        if len(held) >= _ENOUGH:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _counted(pieces: Iterator[bytes], progress: Progress) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        progress.count(len(piece))


class _Short:
    """Takes what a command prints that has next to nothing to print."""

    def __init__(self) -> None:
        self.text = b""

    def take(self, data: bytes) -> None:
        """Add some.  Raises ExecServerError beyond 64 KiB: nobody asked for that."""
        self.text += data
        if len(self.text) > _MAX_SAID:
            raise ExecServerError("the box sends what nobody asked for")
