"""Tells clients that paths which were missing may be there: `fs/watchMissing` (wire contract, section 12).

All connections share one inotify instance, since a user has few of them (128).  It is made for the first
watch and closed after the last one.  A watch fires once, and sooner than needed rather than not at all: a
client that is told looks again, one that is not told waits for ever.  Where nothing can be promised (no
instance or watch is left to this user, a file system of the network) the answer is that nothing is watched.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable

import gevent

from execserver.files.inotify import (
    IN_ATTRIB,
    IN_CREATE,
    IN_DELETE,
    IN_DELETE_SELF,
    IN_DONT_FOLLOW,
    IN_IGNORED,
    IN_MASK_ADD,
    IN_MODIFY,
    IN_MOVE_SELF,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_ONLYDIR,
    IN_Q_OVERFLOW,
    IN_UNMOUNT,
    Event,
    Inotify,
)
from execserver.files.missing import Places, Unwatchable
from execserver.protocol.envelope import encode_notification
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.files import FsMissingChangedNotification, FsWatchMissingParams
from execserver.protocol.methods import FS_MISSING_CHANGED
from execserver.services.clients.sink import MessageSink
from execserver.services.files.filesystem import FileService
from execserver.services.mounts import MOUNT_TABLE

_log = logging.getLogger(__name__)

_NAMES = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO
_GONE = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED
_CHANGED = IN_ATTRIB | IN_MODIFY
_DIRECTORY = _NAMES | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR
_PAUSE_S = 0.01  # after events that concern nobody: a busy directory wakes the server 100 times a second


class MissingWatch:
    """One request: fires once, through `fire`, after it was armed."""

    __slots__ = ("_armed", "_fired", "_told", "names", "present")

    def __init__(self, told: Callable[[], object]) -> None:
        self.names: dict[int, set[bytes]] = {}  # by the number of the kernel's watch
        self.present: int | None = None
        self._told = told
        self._armed = self._fired = False

    def arm(self) -> None:
        """Let it fire: the answer of the request is queued now."""
        self._armed = True
        if self._fired:
            self._told()

    def fire(self) -> None:
        """Tell the client, or remember it until `arm`."""
        self._fired = True
        if self._armed:
            self._told()

    def concerned_by(self, event: Event) -> bool:
        """Return whether an event of one of its watches may mean that a path has changed."""
        if event.name:
            return bool(event.mask & _NAMES) and event.name in self.names.get(event.watch, ())
        if event.mask & _GONE:
            return True
        return event.watch == self.present and bool(event.mask & _CHANGED)


class MissingWatches:
    """The watches of all connections.  Owns its descriptors while there is any watch."""

    def __init__(self, files: FileService) -> None:
        self._files = files
        self._inotify: Inotify | None = None
        self._watches: dict[int, set[MissingWatch]] = {}
        self._refused = False

    def add(self, places: Places, told: Callable[[], object]) -> MissingWatch | None:
        """Watch places; return None if the kernel has no watch left or they have changed meanwhile."""
        watch = MissingWatch(told)
        try:
            self._add_all(watch, places)
        except OSError as error:
            self.remove(watch)
            if not self._refused:
                self._refused = True
                _log.warning("missing paths are not watched: %s", error.strerror)
            return None
        return watch

    def remove(self, watch: MissingWatch) -> None:
        """End a watch; one that has ended is left alone."""
        for number in {*watch.names, watch.present} - {None}:
            assert number is not None
            users = self._watches.get(number)
            if users is None:
                continue
            users.discard(watch)
            if not users:
                del self._watches[number]
                if self._inotify is not None:
                    self._inotify.unwatch(number)
        watch.names.clear()
        watch.present = None
        if not self._watches:
            self._close()

    def _add_all(self, watch: MissingWatch, places: Places) -> None:
        if self._inotify is None:
            self._open()
        for directory, names in places.directories.items():
            # Two paths can be one directory, where something is mounted twice.
            watch.names.setdefault(self._use(watch, directory, _DIRECTORY), set()).update(names)
        if places.present is not None:
            is_directory = os.path.isdir(places.present)
            mask = IN_ATTRIB | (0 if is_directory else IN_MODIFY) | IN_DELETE_SELF | IN_MOVE_SELF
            watch.present = self._use(watch, places.present, mask)

    def _use(self, watch: MissingWatch, path: bytes, mask: int) -> int:
        assert self._inotify is not None
        number = self._inotify.watch(path, mask | IN_DONT_FOLLOW | IN_MASK_ADD)
        self._watches.setdefault(number, set()).add(watch)
        return number

    def _open(self) -> None:
        self._inotify = Inotify()
        # In an epoll instance with the mount table, whose changes the event loop cannot wait for by itself.
        self._epoll = select.epoll()
        self._epoll.register(self._inotify.fd, select.EPOLLIN)
        self._mount_table = -1
        try:
            self._mount_table = os.open(MOUNT_TABLE, os.O_RDONLY | os.O_CLOEXEC)
            self._epoll.register(self._mount_table, select.EPOLLPRI)
        except OSError:
            pass  # no /proc: changes of the mounts stay unnoticed
        self._mounts = self._files.mount_generation()
        loop = gevent.get_hub().loop
        self._readable = loop.io(self._epoll.fileno(), 1)
        self._pause = loop.timer(_PAUSE_S)
        self._readable.start(self._read)

    def _close(self) -> None:
        if self._inotify is None:
            return
        for watcher in (self._readable, self._pause):
            watcher.stop()
            watcher.close()
        self._epoll.close()
        if self._mount_table >= 0:
            os.close(self._mount_table)
        self._inotify.close()
        self._inotify = None

    def _read(self) -> None:
        """Take what happened.  Called in the event loop."""
        assert self._inotify is not None
        self._epoll.poll(0)  # what it says is not exact: looking at the mount table forgets its change
        fired = self._concerned(self._inotify.read())
        if self._files.mount_generation() != self._mounts:
            fired = set().union(*self._watches.values())
            self._mounts = self._files.mount_generation()
        for watch in fired:
            self.remove(watch)
            watch.fire()
        if self._inotify is not None and not fired:
            self._readable.stop()
            self._pause.start(self._read_on)

    def _read_on(self) -> None:
        self._readable.start(self._read)

    def _concerned(self, events: list[Event]) -> set[MissingWatch]:
        found: set[MissingWatch] = set()
        for event in events:
            if event.mask & IN_Q_OVERFLOW:  # the kernel has dropped events: whose, nobody knows
                return found.union(*self._watches.values())
            users = self._watches.get(event.watch, ())
            found.update(watch for watch in users if watch.concerned_by(event))
        return found


class ConnectionWatch:
    """The one watch of a connection, and the rule which request counts: ids must grow."""

    def __init__(self, watches: MissingWatches, files: FileService, sink: MessageSink) -> None:
        self._watches = watches
        self._files = files
        self._sink = sink
        self._highest = -1
        self._watch: MissingWatch | None = None

    def pack(self) -> tuple[int, int | None]:
        """Return what `restore` takes: the highest id, and that of the watch."""
        return self._highest, None if self._watch is None else self._highest

    def restore(self, highest: int, watch_id: int | None) -> None:
        """Go on for another server; nobody has watched meanwhile, so the client is to look again."""
        self._highest = highest
        if watch_id is not None:
            self._tell(watch_id)

    def replace(self, params: FsWatchMissingParams) -> MissingWatch | None:
        """Watch what a request names instead of what is watched; return None if that cannot be.

        The caller arms the watch.  A request whose id is not above all others changes nothing.
        """
        if params.watch_id <= self._highest:
            return None
        self._highest = params.watch_id
        self.close()
        try:
            places = self._places(params)
            self._watch = self._watches.add(places, lambda: self._tell(params.watch_id))
            # Again, now that nothing can happen unnoticed any more.
            if self._watch is not None and self._places(params) != places:
                raise Unwatchable
        except Unwatchable:
            self.close()
        return self._watch

    def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watches.remove(self._watch)
            self._watch = None

    def _places(self, params: FsWatchMissingParams) -> Places:
        try:
            missing = [path.native() for path in params.missing]
            present = None if params.present is None else params.present.native()
        except InvalidRequest:
            raise Unwatchable from None  # paths of another kind of host
        for path in (*missing, *([] if present is None else [present])):
            if not self._files.is_local(path):
                raise Unwatchable  # what other machines do there is not reported, and a look may hang
        return Places(missing, present)

    def _tell(self, watch_id: int) -> None:
        self._watch = None
        params = FsMissingChangedNotification(watch_id=watch_id)
        self._sink.send(encode_notification(FS_MISSING_CHANGED.name, params))
