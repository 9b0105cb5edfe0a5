"""Watches: sessions that follow a process of another session of the same peer.

Each watch has a greenlet that takes the events of the process when its own client has room, and never waits
for anything else.  So neither the process nor its session notices how many follow, or how slowly; what is
lost on the way is told as a gap.  A watch belongs to the session that follows and goes on over a lost
connection; meanwhile it passes over everything, as the notifications of the session's own processes do, and
the client reads it later.  It ends with `close`, with its session, or when the process is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gevent

from execserver.core.output_log import Chunk
from execserver.core.watch_cursor import Exit, Gap, WatchCursor, WatchEvent
from execserver.protocol.envelope import encode_notification
from execserver.protocol.own_methods import PROCESS_GAP, PROCESS_TAKEN
from execserver.protocol.templates import ProcessTemplates
from execserver.protocol.watching import GapNotification, TakenNotification
from execserver.services.clients.attachment import Attachment
from execserver.services.running.process import Process

if TYPE_CHECKING:
    from execserver.handover.records import PackedWatch

_PAGE_BYTES = 64 * 1024  # taken at once, so that a slow client holds back no more


class Watch:
    """A process under the id that another session has given it."""

    __slots__ = ("_attachment", "_cursor", "_greenlet", "_home", "_templates", "process", "watch_id")

    def __init__(
        self,
        process: Process,
        watch_id: str,
        attachment: Attachment,
        home: dict[str, Watch],
        after_seq: int | None,
    ) -> None:
        """Follow a process from `after_seq` on, None for now; `home` holds the session's watches by id."""
        self.process = process
        self.watch_id = watch_id
        self._attachment = attachment
        self._home = home
        self._cursor = WatchCursor(process.state, after_seq)
        self._templates = ProcessTemplates(watch_id)
        self._greenlet: gevent.Greenlet[[], None] | None = None
        home[watch_id] = self
        process.followers.append(self)

    @property
    def attachment(self) -> Attachment:
        """The session that follows."""
        return self._attachment

    def start(self) -> None:
        """Begin to send; called once the answer is queued."""
        if self._home.get(self.watch_id) is self and self._greenlet is None:
            self._greenlet = gevent.spawn(self._run)

    def pack(self, session_id: str) -> PackedWatch:
        """Return what `restore` takes; `session_id` is that of the process's own session."""
        from execserver.handover.records import PackedWatch

        return PackedWatch(self.watch_id, session_id, self.process.process_id, *self._cursor.pack())

    def restore(self, packed: PackedWatch) -> None:
        """Go on from where a packed watch of the same process was."""
        self._cursor.restore(packed.seq, packed.bytes, packed.finished)
        self.start()

    def close(self) -> None:
        """Stop following; a session that wrote to the process by this watch gives that back."""
        greenlet, self._greenlet = self._greenlet, None
        if self in self.process.followers:
            self.process.followers.remove(self)
        self.lose()
        if greenlet is not None:
            greenlet.kill(block=False)
        if self.process.writer is self._attachment:
            take(self.process, self.process.owner)

    def lose(self) -> None:
        """The process is forgotten: free the id; what the client has not got of the end still comes."""
        if self._home.get(self.watch_id) is self:
            del self._home[self.watch_id]

    def tell_writer(self) -> None:
        """Tell the client whether its session writes to the process now."""
        _send_writer(self._attachment, self.watch_id, self.process)

    def _run(self) -> None:
        cursor = self._cursor
        while not cursor.finished:
            self.process.wait_beyond(cursor.seq)
            self._attachment.wait_for_room()
            if self._attachment.sink is None:
                cursor.skip()
                continue
            for event in cursor.take(_PAGE_BYTES):
                self._attachment.send(*self._message(event))
            gevent.sleep(0)
        self._greenlet = None  # a greenlet that holds its own watch would need the collector

    def _message(self, event: WatchEvent) -> tuple[bytes, ...]:
        if isinstance(event, Chunk):
            return self._templates.output(event.stream, event.seq, event.data)
        if isinstance(event, Gap):
            gap = GapNotification(process_id=self.watch_id, **event._asdict())
            return (encode_notification(PROCESS_GAP.name, gap),)
        if isinstance(event, Exit):
            state = self.process.state
            verdict = (state.sandbox_denied, state.sandbox_refusal, state.end_text)
            return (self._templates.exited(event.seq, state.exit_code or 0, *verdict),)
        return (self._templates.closed(event.seq),)


def take(process: Process, attachment: Attachment) -> None:
    """Let a session write to a process, and no other; tell all that have to do with it."""
    if process.writer is attachment:
        return
    process.writer = attachment
    if process.owner.knows_watchers:
        _send_writer(process.owner, process.process_id, process)
    for follower in process.followers:
        follower.tell_writer()


def _send_writer(attachment: Attachment, process_id: str, process: Process) -> None:
    note = TakenNotification(process_id=process_id, writer=process.writer is attachment)
    attachment.send(encode_notification(PROCESS_TAKEN.name, note))
