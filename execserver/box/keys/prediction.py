"""Which keys are shown before the far side has drawn them, and when that is taken back.  No I/O, no clock.

Keys are drawn at the end of a row, into cells known to be blank, and only while the program there shows
what is typed: since the last key that is no character at least one has come back exactly as predicted.  So no
character of a password is shown, whose first one never comes back.  An answer that is another one ends that
until the next such key.

Whoever writes takes back what is shown before each output, feeds the output to the reader, and shows anew
what `follow` returns.  Then a terminal that shows nothing has exactly what the far side has drawn.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from execserver.box.keys.line_model import BLANK, STYLED
from execserver.box.keys.line_reader import LineReader

MOST_KEYS: Final = 64
_BACKSPACES: Final = frozenset((0x08, 0x7F))
_OTHER: Final = -1  # a key, or several, whose effect is not predicted
_ERASE: Final = -2
# Programs show these in the place of what is typed, so they prove nothing.
_PROVE_NOTHING: Final = frozenset((_ERASE, ord("*"), ord(" "), ord(".")))
_plain: Final = bytes(code & ~STYLED for code in range(256))


class _Key(NamedTuple):
    """A key that has not come back: what it is, and when it was typed (seconds)."""

    code: int
    at: float


class _Draft(NamedTuple):
    """What is shown: characters before the cursor that are erased, and text in their place and behind."""

    erased: bytes = b""
    text: bytes = b""


class Prediction:
    """The keys that are under way, and what of them is on the screen.

    `is_marked`: underline what is not confirmed.  An answer within `soonest` seconds is none.
    """

    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self._keys: list[_Key] = []
        self._is_proven = False
        self._is_off = False  # until a key that is no character
        self._run = 0  # characters before the cursor that were typed and came back
        self._shown: _Draft | None = None
        self._line = -1
        self._column = 0
        self._cells = b""
        self.is_marked = False
        self.soonest = 0.0
        self._stand()

    @property
    def since(self) -> float | None:
        """When the oldest key was typed that has not come back; None if there is none."""
        return self._keys[0].at if self._keys else None

    def typed(self, keys: bytes, now: float) -> bytes:
        """Note what is typed; return what to write."""
        if len(keys) > MOST_KEYS or 0x1B in keys:  # pasted, or of a key with a sequence
            self._type(_OTHER, now)
            return self._show()
        for code in keys:
            self._type(_ERASE if code in _BACKSPACES else code if 0x20 <= code < 0x7F else _OTHER, now)
        return self._show()

    def take_back(self) -> bytes:
        """Return what makes the screen as it is without predictions."""
        shown, self._shown = self._shown, None
        if shown is None:
            return b""
        back, rest = len(shown.text), len(shown.text) - len(shown.erased)
        return b"%b%b%b" % (_left(back), shown.erased, b"\x1b[%dX" % rest if rest > 0 else b"")

    def follow(self, now: float) -> bytes:
        """Judge by what was written since; return what to write then.  Nothing is shown before."""
        model = self._reader.model
        if self._keys or self._is_proven or self._run:
            is_same = model.line == self._line and model.column == self._column and model.cells == self._cells
            if not is_same and not self._reader.is_between:
                self._judge(now)
        if not self._reader.is_between:
            self._stand()
            self._revise()
        return self._show()

    def expire(self, now: float, seconds: float) -> bytes:
        """Give up keys that have not come back for so long; return what to write."""
        if not self._keys or now - self._keys[0].at < seconds:
            return b""
        head = self._head()
        self._is_off = head == len(self._keys) and self._draft(head)[0] != _Draft()
        return self.forget()

    def forget(self) -> bytes:
        """Forget all keys; return what to write.  One more has to come back before anything is shown."""
        self._keys.clear()
        self._is_proven, self._run = False, 0
        return self.take_back()

    def _type(self, code: int, now: float) -> None:
        is_last_other = bool(self._keys) and self._keys[-1].code == _OTHER
        if code == _OTHER:
            if self._is_off or not self._keys:
                self._keys.clear()
                self._is_off, self._is_proven, self._run = False, False, 0
            if not is_last_other:
                self._keys.append(_Key(_OTHER, now))
        elif self._is_off:
            return
        elif len(self._keys) < MOST_KEYS:
            self._keys.append(_Key(code, now))
            self._revise()
        elif not is_last_other:
            self._keys.append(_Key(_OTHER, now))

    def _head(self, begin: int = 0) -> int:
        """Return where the next key is that is not predicted, or how many keys there are."""
        return next(
            (at for at in range(begin, len(self._keys)) if self._keys[at].code == _OTHER), len(self._keys)
        )

    def _judge(self, now: float) -> None:
        head = end = self._head()
        begin, came = 0, self._echoed(0, end)
        while not came and end < len(self._keys):  # the answer to that key may have come before
            begin, end = end + 1, self._head(end + 1)
            came = self._echoed(begin, end)
        if begin or not came:
            self._is_proven, self._run = False, 0
        if came:
            del self._keys[: begin + len(came)]
            self._run = max(0, self._run + sum(-1 if code == _ERASE else 1 for code in came))
            self._is_proven = self._is_proven or not _PROVE_NOTHING.issuperset(came)
        elif head < len(self._keys):
            del self._keys[: head + 1]  # the answer to that key has begun
        elif self._keys and now - self._keys[0].at >= self.soonest:
            self._keys.clear()
            self._is_off = True

    def _echoed(self, begin: int, end: int) -> list[int]:
        """Return which of these keys, the most, make of what was there what is there now; none if none do."""
        model = self._reader.model
        if model.line != self._line or model.column is None or len(model.cells) != len(self._cells):
            return []
        cells, column = bytearray(self._cells.translate(_plain)), self._column
        now = model.cells.translate(_plain)
        typed, count = [key.code for key in self._keys[begin:end]], 0
        for number, code in enumerate(typed, 1):
            column -= code == _ERASE
            if not 0 <= column < len(cells):
                break
            cells[column] = BLANK if code == _ERASE else code
            column += code != _ERASE
            if column == model.column and cells == now:
                count = number
        return typed[:count]

    def _stand(self) -> None:
        """Go on from where the cursor is now."""
        model = self._reader.model
        self._line, self._cells = model.line, bytes(model.cells)
        self._column = -1 if model.column is None else model.column

    def _can_draw(self) -> bool:
        reader = self._reader
        return not (reader.trouble or reader.model.style or reader.is_between or self._column < 0)

    def _revise(self) -> None:
        """Let keys that cannot be predicted here be as other keys."""
        head = self._head()
        _, count = self._draft(head)
        if count < head:
            self._keys[count:] = [_Key(_OTHER, self._keys[count].at)]

    def _draft(self, head: int) -> tuple[_Draft, int]:
        """Return what the first keys would draw, and how many of them can be drawn."""
        erased, text, column = 0, bytearray(), self._column
        if not self._can_draw():
            return _Draft(), 0
        for number, key in enumerate(self._keys[:head]):
            if key.code != _ERASE:
                place = column - erased + len(text)
                if place >= len(self._cells) - 1 or (place >= column and self._cells[place] != BLANK):
                    return self._drawn(erased, text), number
                text.append(key.code)
            elif text:
                text.pop()
            elif erased < self._run and 0x20 <= self._cells[column - erased - 1] < 0x7F:
                erased += 1
            else:
                return self._drawn(erased, text), number
        return self._drawn(erased, text), head

    def _drawn(self, erased: int, text: bytes | bytearray) -> _Draft:
        return _Draft(self._cells[self._column - erased : self._column], bytes(text))

    def _show(self) -> bytes:
        wanted = self._draft(self._head())[0] if self._is_proven and self._keys else _Draft()
        shown = self._shown or _Draft()
        if wanted == shown:
            return b""
        if wanted.erased == shown.erased and wanted.text.startswith(shown.text) and self._shown is not None:
            self._shown = wanted
            return self._marked(wanted.text[len(shown.text) :])
        back = self.take_back()
        if wanted == _Draft():
            return back
        self._shown = wanted
        rest = len(wanted.erased) - len(wanted.text)
        blank = b"\x1b[%dX" % rest if rest > 0 else b""
        return b"%b%b%b%b" % (back, _left(len(wanted.erased)), self._marked(wanted.text), blank)

    def _marked(self, text: bytes) -> bytes:
        return b"\x1b[4m%b\x1b[24m" % text if self.is_marked and text else text


def _left(count: int) -> bytes:
    return b"\x1b[%dD" % count if count > 1 else b"\b" if count else b""
