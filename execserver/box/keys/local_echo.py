"""Standard output at a terminal, on which keys may show before the box has answered.

On a fast link only the time from a key to its echo is taken, and what is written is kept, 16 KiB at most, to
be read together.  All that this program writes to the terminal goes through here, or is told to `note`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from gevent.hub import get_hub

from execserver.box.manner import Predict

if TYPE_CHECKING:
    from execserver.box.descriptors import Sink
    from execserver.box.keys.line_reader import LineReader
    from execserver.box.keys.prediction import Prediction
    from execserver.box.terminal import Size

_SLOW_S: Final = 0.03  # from a key to its echo: above it predictions show,
_FAST_S: Final = 0.02  # below it no longer
_MARKED_S: Final = 0.08  # above this they are underlined
_NEW_SHARE: Final = 1 / 8  # of one echo in the mean time, as in TCP
_LONGEST_S: Final = 5.0  # a key without echo for so long has none
_PATIENCE_S: Final = 1.0  # or three times the mean time
_UNREAD_BYTES: Final = 16 * 1024
_SKIPPED: Final = 15  # keys behind one whose echo was fast: taking the time is not for nothing
_LARGEST_WIDTH: Final = 4096


class LocalEcho:
    """Owns the sink from `begin` to `close`; nothing in it blocks but `write`."""

    def __init__(self, size: Callable[[], Size | None], predict: Predict) -> None:
        self._size_now = size
        self._size = size()
        self._is_always = predict is Predict.ALWAYS
        self._sink: Sink | None = None
        self._write: Callable[[bytes], int] = _nothing_written
        self._reader: LineReader | None = None
        self._prediction: Prediction | None = None  # while predictions may show
        self._unread = bytearray()
        self._key: bytes | None = None  # whose echo is waited for
        self._key_at = 0.0
        self._skipped = 0  # keys of a fast link that are not timed any more
        self._mean_s: float | None = None
        self._is_busy = False  # a greenlet writes
        self._is_lost = False
        self._owed = b""  # of our own, before all else
        self._ahead = 0  # bytes of the next output that are read, and not written
        self._timer: Any = None

    def begin(self, sink: Sink) -> LocalEcho:
        """Write to this sink from now on."""
        self._sink, self._write = sink, sink.write_at_once
        if self._is_always:
            self._start()
        return self

    def close(self) -> None:
        """Take back what is shown, and close the sink."""
        self.withdraw()
        self._prediction = None
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        sink, self._sink, self._write = self._sink, None, _nothing_written
        if sink is not None:
            sink.close()

    # Keys

    def typed(self, keys: bytes) -> None:
        """Take what was just sent to the box."""
        if self._skipped:
            self._skipped -= 1
            return
        if self._key is None and len(keys) == 1 and b" " <= keys < b"\x7f":
            self._key, self._key_at = keys, monotonic()
        if self._prediction is not None:
            self._show(self._prediction, keys)

    def _show(self, prediction: Prediction, keys: bytes) -> None:
        if self._is_busy or self._is_lost or self._owed or self._ahead:
            self._owed += prediction.forget()
        else:
            self._put(prediction.typed(keys, monotonic()))
        self._watch(prediction)

    def _put(self, own: bytes) -> None:
        if own:
            self._owed = own[self._write(own) :]

    def withdraw(self) -> None:
        """Take back what is shown, before something else is written to the terminal."""
        if self._prediction is not None:
            self._put(self._owed + self._prediction.forget())

    def _watch(self, prediction: Prediction) -> None:
        """Have keys given up that do not come back."""
        if (prediction.since is None and not self._owed) or self._sink is None:
            return
        if self._timer is None:
            self._timer = get_hub().loop.timer(_PATIENCE_S)
        if not self._timer.active:
            self._timer.start(self._expire)

    def _expire(self) -> None:
        prediction = self._prediction
        if prediction is None or self._is_busy:
            return
        patience = max(_PATIENCE_S, 3 * (self._mean_s or 0.0))
        self._put(self._owed + prediction.expire(monotonic(), patience))
        self._watch(prediction)

    # The time that an echo takes

    def _echoed(self, key: bytes, data: bytes) -> None:
        """Take the time of an echo, and begin or end to predict by it."""
        took = monotonic() - self._key_at
        if key not in data:
            if took > _LONGEST_S:
                self._key = None
            return
        self._key = None
        mean = self._mean_s
        self._mean_s = mean = took if mean is None else mean + (took - mean) * _NEW_SHARE
        if self._prediction is None:
            if mean > _SLOW_S:
                self._start()
            elif took < _SLOW_S:
                self._skipped = _SKIPPED
        elif mean < _FAST_S and not (self._is_always or self._owed or self._ahead):
            self.withdraw()
            self._prediction = None
        if self._prediction is not None:
            self._prediction.soonest, self._prediction.is_marked = mean / 2, mean > _MARKED_S

    def _start(self) -> None:
        from execserver.box.keys.prediction import Prediction  # late: it takes a slow link

        reader = self._read_all()
        if reader is not None:
            self._prediction = Prediction(reader)

    # Output

    def write_at_once(self, data: bytes) -> int:
        """As `Sink.write_at_once`; what is shown of keys moves behind the output."""
        if self._key is not None or self._prediction is not None:
            return self._write_watched(data)
        written = self._write(data)
        unread = self._unread
        unread += data if written == len(data) else data[:written]
        if len(unread) > _UNREAD_BYTES:
            self._read_all()
        return written

    def _write_watched(self, data: bytes) -> int:
        if self._key is not None:
            self._echoed(self._key, data)
        if self._prediction is not None:
            return self._write_between(self._prediction, data)
        written = self._write(data)
        self._read(data[:written])
        return written

    def _write_between(self, prediction: Prediction, data: bytes) -> int:
        before, ahead = self._owed + prediction.take_back(), self._ahead
        self._read(data[ahead:])
        again = prediction.follow(monotonic()) if len(data) >= ahead else b""
        written = self._write(before + data + again)
        left = len(before) + len(data) + len(again) - written
        if left == 0:
            self._owed, self._ahead = b"", max(0, ahead - len(data))
        elif left <= len(again):  # part of what is shown again: have the rest written, and all taken back
            self._owed, self._ahead = again[len(again) - left :] + prediction.forget(), 0
        else:
            prediction.forget()  # not written at all
            self._owed = before[written:]
            taken = max(0, written - len(before))
            self._ahead = max(ahead, len(data)) - taken
            return taken
        self._watch(prediction)
        return len(data)

    def write(self, data: bytes) -> None:
        """As `Sink.write`."""
        written = self.write_at_once(data)
        if written == len(data) or self._sink is None:
            return
        rest, owed, self._owed = data[written:], self._owed, b""
        self._is_busy = True
        try:
            self._sink.write(owed + rest)
        finally:
            self._is_busy = False
        self._read(rest[self._ahead :])
        self._ahead = max(0, self._ahead - len(rest))

    def note(self, data: bytes) -> None:
        """Take what was written to the terminal by another way, after `withdraw`."""
        self._read(data)
        if self._prediction is not None:
            self._prediction.follow(monotonic())

    def _read(self, data: bytes) -> None:
        if self._prediction is not None and self._reader is not None:
            self._reader.feed(data)
            return
        self._unread += data
        if len(self._unread) > _UNREAD_BYTES:
            self._read_all()

    def _read_all(self) -> LineReader | None:
        """Read what was kept; return None for a terminal that does not know its size, or a strange one."""
        unread = bytes(self._unread)
        self._unread.clear()
        if self._size is None or self._size.cols > _LARGEST_WIDTH:
            return None
        if self._reader is None:
            from execserver.box.keys.line_reader import LineReader  # late, as above

            self._reader = LineReader(self._size.rows, self._size.cols)
        self._reader.feed(unread)
        return self._reader

    # What happens to the terminal

    def resized(self) -> None:
        """Take the terminal's new size."""
        size = self._size_now()
        if size == self._size:
            return
        self.withdraw()
        reader = self._read_all()
        self._size = size
        if size is None or size.cols > _LARGEST_WIDTH:
            self._prediction = self._reader = None
        elif reader is not None:
            reader.resize(size.rows, size.cols)
            self._forget()

    def lost(self, is_back: bool) -> None:
        """Show nothing while the connection is lost."""
        if not is_back:
            self.withdraw()
        self._is_lost = not is_back

    def strayed(self) -> None:
        """Take back what is shown: another program will have the terminal for a while."""
        self.withdraw()
        reader = self._read_all()
        if reader is not None:
            reader.lose()
            self._forget()

    def _forget(self) -> None:
        if self._prediction is not None:
            self._prediction.follow(monotonic())


def _nothing_written(data: bytes) -> int:
    return 0
