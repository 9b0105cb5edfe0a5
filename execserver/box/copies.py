"""`sync` and `cp --resume`, from what a person typed to the exit status: finds the paths, and runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from execserver.box.connecting import Box, reaching
from execserver.box.following import follow
from execserver.box.interrupts import ending_cleanly
from execserver.box.nodes import TooLarge
from execserver.box.report import Report
from execserver.box.running import open_client
from execserver.box.shown import shown
from execserver.box.syncing import Manner, Sync, box_path, local_path, refused
from execserver.box.watching import lasting_client, leave
from execserver.client.errors import NotFoundError, RequestFailed
from execserver.leaving import failure
from execserver.own_process import keep_freed_buffers
from execserver.protocol.paths import PathUri

if TYPE_CHECKING:
    from execserver.client.client import ExecServerClient


class Wanted(NamedTuple):
    """A source and a target as they were typed, and how much is printed."""

    source: str
    target: str
    up: bool
    lines: bool = False
    quiet: bool = False


def sync(box: Box, wanted: Wanted, manner: Manner, *, watch: bool) -> int:
    """Make the target like the source, with `watch` for good; return the exit status.  Raises Leave."""
    client = lasting_client(box) if watch else open_client(box)
    keep_freed_buffers()
    report = Report(lines=wanted.lines, dry=manner.dry, quiet=wanted.quiet)
    try:
        with _answers(box):
            here, there = (wanted.source, wanted.target) if wanted.up else (wanted.target, wanted.source)
            work = Sync(
                client,
                local_path(here, follow=True),
                box_path(client, box, there, follow=True),
                report,
                manner,
                up=wanted.up,
            )
            _refuse_nested(box, work)
            return follow(work, client, box) if watch else work.run()
    finally:
        leave(client) if watch else client.close()


def _refuse_nested(box: Box, work: Sync) -> None:
    if box.is_private and os.path.commonpath((work.here, work.there)) in (work.here, work.there):
        raise failure("one side is within the other", "name two folders beside each other")


def resume(box: Box, sources: Sequence[str], target: str, *, up: bool, quiet: bool) -> int:
    """Copy what is not there yet, and go on with large files; return the exit status.  Raises Leave."""
    client = open_client(box)
    keep_freed_buffers()
    status = 0
    try:
        with _answers(box):
            into = _is_folder(client, box, target, up)
            if len(sources) > 1 and not into:
                raise failure(f"{shown(target, 300)} is no folder", "name one that exists")
            for source in sources:
                report = Report(lines=False, dry=False, quiet=quiet)
                status |= _resumed(client, box, source, target, report, up=up, into=into)
    finally:
        client.close()
    return status


def _resumed(
    client: ExecServerClient, box: Box, source: str, target: str, report: Report, *, up: bool, into: bool
) -> int:
    if up:
        here = local_path(source, follow=False)
        there = box_path(client, box, target, follow=into)
        there = os.path.join(there, os.path.basename(here)) if into else there
    else:
        there = box_path(client, box, source, follow=False)
        here = local_path(target, follow=into)
        here = os.path.join(here, os.path.basename(there)) if into else here
    return Sync(client, here, there, report, Manner(), up=up).run()


def _is_folder(client: ExecServerClient, box: Box, target: str, up: bool) -> bool:
    if not up:
        return os.path.isdir(target)
    try:
        path = PathUri.from_native(box_path(client, box, target, follow=True))
        return client.get_metadata(path).is_directory
    except NotFoundError:
        return False


@contextmanager
def _answers(box: Box) -> Iterator[None]:
    """Turn what a box answers, or fails to, and a signal, into a Leave."""
    with reaching(box), ending_cleanly():
        try:
            yield
        except (RequestFailed, TooLarge) as error:
            raise refused(box, error) from None
