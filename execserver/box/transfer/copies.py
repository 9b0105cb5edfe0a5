"""`sync` and `cp`, from what a person typed to the exit status: finds the paths, and runs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from execserver.box.commands.running import open_client
from execserver.box.connecting import Box, patience, reaching
from execserver.box.interrupts import ending_cleanly
from execserver.box.shown import shown
from execserver.box.transfer.report import Report
from execserver.box.transfer.syncing import Manner, Sync, box_path, local_path, refused
from execserver.box.trees.native import native
from execserver.box.trees.nodes import TooLarge
from execserver.client.errors import NotFoundError, RequestFailed
from execserver.leaving import Leave, failure
from execserver.own_process import keep_freed_buffers
from execserver.protocol.paths import PathUri

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient


PATIENCE_S: Final = 300.0
"""For one request of a copy: what is under way takes its time on a slow line."""

_RESUMED: Final = "copy once more with --resume"
_SYNCED: Final = "do the same again"
_NAME_ONE: Final = "name one that exists"


class Wanted(NamedTuple):
    """A source and a target as they were typed, and how much is printed."""

    source: str
    target: str
    up: bool
    lines: bool = False
    quiet: bool = False


def sync(box: Box, wanted: Wanted, manner: Manner, *, watch: bool) -> int:
    """Make the target like the source, with `watch` for good; return the exit status.  Raises Leave."""
    from execserver.box.commands import watching  # late: `cp` does without
    from execserver.box.transfer import following

    client = watching.lasting_client(box) if watch else open_client(box, request_timeout=PATIENCE_S)
    keep_freed_buffers()
    report = Report(wanted.source, lines=wanted.lines, dry=manner.dry, quiet=wanted.quiet)
    try:
        with _answers(box, _SYNCED):
            here, there = (wanted.source, wanted.target) if wanted.up else (wanted.target, wanted.source)
            work = Sync(
                client,
                local_path(here, follow=True),
                box_path(client, box, there, follow=True),
                report,
                manner._replace(again=_SYNCED),
                up=wanted.up,
            )
            _refuse_nested(box, work)
            return following.follow(work, client, box) if watch else work.run()
    finally:
        watching.leave(client) if watch else client.close()


def _refuse_nested(box: Box, work: Sync) -> None:
    if box.is_private and os.path.commonpath((work.here, work.there)) in (work.here, work.there):
        raise failure("one side is within the other", "name two folders beside each other")


def copy(
    client: ExecServerClient,
    box: Box,
    sources: Sequence[str],
    target: str,
    *,
    up: bool,
    quiet: bool,
    resumes: bool,
) -> int:
    """Copy sources to a target, or with `resumes` what is not there yet; return the exit status.

    Raises Leave.
    """
    keep_freed_buffers()
    manner = Manner(fresh=not resumes, strict=True, again=_RESUMED)
    status = 0
    with _answers(box, _RESUMED):
        if up:
            with patience():
                there, into = _goal(client, box, target)
        else:
            refuse_special(target)
            there, into = b"", os.path.isdir(target)
        if len(sources) > 1 and not into:
            raise failure(f"{shown(target, 300)} is no folder{f' on {box.name}' if up else ''}", _NAME_ONE)
        for source in sources:
            report = Report(source, lines=False, dry=False, quiet=quiet, brief=not resumes)
            if up:
                here = local_path(source, follow=False)
                path = os.path.join(there, os.path.basename(here)) if into else there
            else:
                path = box_path(client, box, source, follow=False)
                here = local_path(target, follow=into)
                here = os.path.join(here, os.path.basename(path)) if into else here
            status |= Sync(client, here, path, report, manner, up=up).run()
    return status


def _goal(client: ExecServerClient, box: Box, target: str) -> tuple[bytes, bool]:
    """Return the path on the box for a target, and whether that is a folder, which things go into."""
    plain = box_path(client, box, target, follow=False)
    try:
        path = client.canonicalize(PathUri.from_native(plain))
        found = client.get_metadata(path)
        if found.is_directory:
            return native(path), True
        if not found.is_file:
            raise special(target, f"execserver cp - {shown(box.name, 200)}:{shown(target, 300)} < FILE")
    except NotFoundError:
        pass  # it is made
    return plain, False


def special(target: str, way: str) -> Leave:
    """Return the Leave for a target that no file may replace; `way` writes into it."""
    return failure(f"{shown(target, 300)} is a device, FIFO or socket, which is not replaced", way)


def refuse_special(target: str) -> None:
    """Raise Leave for a target here that no file may replace, such as /dev/null."""
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return  # whoever writes it is told
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise special(target, f"execserver cp BOX:PATH - > {shown(target, 300)}")


@contextmanager
def _answers(box: Box, again: str) -> Iterator[None]:
    """Turn what a box answers, or fails to, and a signal, into a Leave; `again` is how a person goes on."""
    with reaching(box, f"{again}: it goes on behind what has come"), ending_cleanly():
        try:
            yield
        except (RequestFailed, TooLarge) as error:
            raise refused(box, error) from None
