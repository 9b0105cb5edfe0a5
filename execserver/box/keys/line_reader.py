"""Reads what is written to a terminal, piece by piece, into a `LineModel`.  No I/O.

A sequence whose meaning is not known here may have moved the cursor and drawn anything.  Nothing is predicted
in modes in which a character would do something else than to appear: `trouble` is not 0 then.  Back from the
alternate screen all is taken to be as before, since a terminal without one is not told to change to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from execserver.box.keys.line_model import LineModel
from execserver.box.keys.line_style import UNKNOWN_STYLE, styled

_MOST_HELD: Final = 4096  # of an unfinished sequence; longer ones are texts, as of the clipboard
_HEAD: Final = 16  # enough of a text to tell what it is
_LARGE: Final = 8192  # what is larger is passed over
_FULL: Final = 1024  # but its last bytes, which are read in full
_TOKEN: Final = re.compile(
    rb"(?P<text>[ -~]+)"
    rb"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])"
    rb"|(?P<other>[\x80-\xff]+)"
    rb"|\x1b\[(?P<parameters>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    rb"|\x1b\](?P<command>[^\x07\x1b\x18\x1a]*)(?:\x07|\x1b\\)"
    rb"|(?P<string>\x1b[PX^_k][^\x1b\x18\x1a]*\x1b\\)"
    rb"|(?P<broken>\x1b(?:\[[^@-~\x1b\x18\x1a]*[@-~\x18\x1a]|\][^\x07\x1b\x18\x1a]*[\x18\x1a]"
    rb"|[PX^_k][^\x1b\x18\x1a]*[\x18\x1a]))"
    rb"|\x1b(?P<escape>[ -/]*[0-OQ-WYZ\\`-jl-~])"
)
_NUMBERS: Final = re.compile(rb"[0-9]{0,5}(?:;[0-9]{0,5})?")
_BEGUN: Final = re.compile(
    rb"\x1b(?:\[[^@-~\x1b\x18\x1a]*|\][^\x07\x1b\x18\x1a]*\x1b?|[PX^_k][^\x1b\x18\x1a]*\x1b?|[ -/]*)\Z"
)
# In what is passed over: all that may do more than write, end lines, erase a row's end or change the style.
_WEIGHTY: Final = re.compile(rb"\x1b(?!\[[0-9;]*[mK])")
_WEIGHTY_CONTROL: Final = re.compile(rb"[\x0e\x0f]|" + _WEIGHTY.pattern)  # ten times as slow
_CONTROL: Final = re.compile(rb"\xc2[\x80-\x9f]")  # in UTF-8, obeyed by some terminals
# Private modes that change nothing of what is shown, or the cursor's look: keys, mouse, paste, focus.
_HARMLESS_MODES: Final = frozenset(
    (
        *(1, 5, 9, 12, 25, 66, *range(1000, 1008), 1015, 1016, 1034, 1035, 1036, 1039),
        *(2004, 2026, 2031, 7727),
    )
)
_HARMLESS_COMMANDS: Final = re.compile(
    rb"(?:[012479]|5|1[0-9]|21|22|50|52|1(?:0[45]|1[0-9])|133|633|697|777)(?:;.*)?\Z", re.S
)
_HARMLESS: Final = frozenset(
    (
        *(b">c", b">m", b">n", b">p", b">q", b">t", b">u", b"=c", b"=u", b"<u", b"?u", b"?m", b"?n"),
        *(b"?$p", b"$p", b"c", b"n", b"t", b" q"),
    )
)


# Modes in which a character does not just appear where the cursor is, as bits of `trouble`.
ALTERNATE, _REGION, _INSERT, _ORIGIN, _NO_WRAP, _CHARACTERS = 1, 2, 4, 8, 16, 32
_SHIFTED, _NEW_LINE, _MARGINS, _LINK, _BACK_WRAP, _TWICE = 64, 128, 256, 512, 1024, 2048
_MODES: Final = {4: _INSERT, 12: _TWICE, 20: _NEW_LINE}
_PRIVATE_MODES: Final = {6: _ORIGIN, 45: _BACK_WRAP, 69: _MARGINS}
_OF_A_SOFT_RESET: Final = _INSERT | _ORIGIN | _REGION | _CHARACTERS | _SHIFTED
_OF_A_CURSOR: Final = _ORIGIN | _CHARACTERS | _SHIFTED  # it is saved and restored with these
_ODD_TEXT: Final = _INSERT | _NO_WRAP | _MARGINS | _NEW_LINE | _BACK_WRAP | _REGION | _ORIGIN


class _Saved(NamedTuple):
    """The first screen, while the alternate one is shown."""

    model: LineModel
    trouble: int


class LineReader:
    """Feeds `model`, which is another object after a change between two screens."""

    def __init__(self, rows: int, width: int) -> None:
        self.model = LineModel(rows, width)
        self.trouble = 0
        self._rows = rows
        self._held = b""
        self._has_tabs = True
        self._saved_trouble = 0  # by DECSC: of the character sets
        self._first: _Saved | None = None

    @property
    def is_between(self) -> bool:
        """True where what comes next may belong to what came last: nothing must be written between them."""
        return bool(self._held)

    def resize(self, rows: int, width: int) -> None:
        """Take another size."""
        self._rows = rows
        self._first = None
        self.model.resize(rows, width)

    def lose(self) -> None:
        """Know nothing of the screen: another program has had it, and left the plain style."""
        self._first = None
        self.model.lose()
        self.model.style = 0

    def feed(self, data: bytes) -> None:
        """Take what was written."""
        data, self._held = self._held + data, b""
        at = self._pass_over(data) if len(data) > _LARGE else 0
        while at < len(data):
            found = _TOKEN.match(data, at)
            if found is None:
                at = self._unfinished(data, at)
            else:
                self._take(found, at=found.end(), data=data)
                at = found.end()

    def _unfinished(self, data: bytes, at: int) -> int:
        if _BEGUN.match(data, at) is None:  # a sequence that another one has cut off
            self.model.lose()
            end = data.find(b"\x1b", at + 1)
            return len(data) if end < 0 else end
        rest = data[at:]
        if len(rest) > _MOST_HELD:
            rest = rest[:_HEAD] + (b"\x1b" if rest.endswith(b"\x1b") else b"")
        self._held = rest
        return len(data)

    def _pass_over(self, data: bytes) -> int:
        """Read a large piece but its end for what changes more than a row; return where that end begins."""
        end = data.find(b"\n", len(data) - _FULL)
        end = max(0, len(data) - _FULL) if end < 0 else end
        begun = data.rfind(b"\x1b", 0, end)
        if begun >= 0 and (_TOKEN.match(data, begun, end) is None):
            end = begun
        at, changes_style = 0, UNKNOWN_STYLE if data.find(b"\x1b[", 0, end) >= 0 else 0
        self.model.style |= changes_style
        weighty_ones = _WEIGHTY_CONTROL if b"\x0e" in data or b"\x0f" in data else _WEIGHTY
        while (weighty := weighty_ones.search(data, at, end)) is not None:
            found = _TOKEN.match(data, weighty.start())
            self.model.lose_row()  # what was written since; the first screen is kept as it is known now
            if found is None:
                self.model.lose()
                at = weighty.start() + 1
            else:
                self._take(found, at=found.end(), data=data)
                at = found.end()
        for _ in range(min(data.count(b"\n", at, end), self._rows)):
            self._down()
        self.model.lose_row()
        self.model.style |= changes_style
        if self.trouble or _CONTROL.search(data, 0, end) is not None:
            self.model.lose()
        return max(at, end)

    def _take(self, found: re.Match[bytes], at: int, data: bytes) -> None:
        kind = found.lastgroup
        if kind == "text":
            self._text(found[kind])
        elif kind == "control":
            self._control(found[kind][0])
        elif kind == "other":
            self._other(found[kind], is_last=at == len(data))
        elif kind == "final":
            self._sequence(found["parameters"], found["between"], found[kind])
        elif kind == "command":
            self._command(found[kind])
        elif kind == "escape":
            self._escape(found[kind])
        else:
            self.model.lose()

    def _text(self, text: bytes) -> None:
        if self.trouble & _ODD_TEXT:
            self.model.lose_row()
        else:
            self.model.write(text)
            if self.trouble & (_CHARACTERS | _SHIFTED | _LINK):
                self.model.cells[:] = bytes(self.model.width)

    def _other(self, text: bytes, *, is_last: bool) -> None:
        try:
            count = len(text.decode())
        except UnicodeDecodeError as error:
            begun = text[error.start :]
            if is_last and error.reason == "unexpected end of data" and len(begun) < 4:
                self._held = begun
                count = len(text[: error.start].decode())
            else:
                self.model.lose_row()
                return
        if _CONTROL.search(text) is not None:
            self.model.lose()
        elif self.trouble & _ODD_TEXT:
            self.model.lose_row()
        elif count:
            self.model.write_other(count)

    def _control(self, code: int) -> None:
        model = self.model
        if code == 0x0D:
            model.go_to(0)
        elif code in (0x0A, 0x0B, 0x0C):
            self._down()
        elif code == 0x08:
            if self.trouble & _BACK_WRAP:
                model.lose()
            model.go_left(1)
        elif code == 0x09:
            if self._has_tabs:
                model.tab()
            else:
                model.lose_row()
        elif code in (0x0E, 0x0F):
            self._trouble(_SHIFTED, code == 0x0E)
        elif code not in (0x00, 0x05, 0x07, 0x7F):
            model.lose_row()

    def _down(self) -> None:
        if self.trouble & (_REGION | _MARGINS | _NEW_LINE | _ORIGIN):
            self.model.lose()
        else:
            self.model.down()

    def _trouble(self, which: int, is_on: bool) -> None:
        self.trouble = self.trouble | which if is_on else self.trouble & ~which

    def _sequence(self, parameters: bytes, between: bytes, final: bytes) -> None:
        private = parameters[:1] if parameters[:1] in (b"?", b">", b"=", b"<") else b""
        name = private + between + final
        if name in (b"h", b"l", b"?h", b"?l"):
            for each in parameters.removeprefix(b"?").split(b";"):
                self._mode(private, int(each) if each.isdigit() and len(each) < 6 else -1, final == b"h")
        elif name == b"m":
            self.model.style = styled(self.model.style, parameters)
        elif name == b"r":
            self._region(parameters)
        elif name in (b"s", b"u"):
            (self._save if name == b"s" else self._restore)()
        elif name == b"!p":
            self.trouble &= ~_OF_A_SOFT_RESET
            self.model.style = 0
        elif name == b"g":
            self._has_tabs = False
        elif name in _MOVES and _NUMBERS.fullmatch(parameters):
            _MOVES[name](self.model, int(parameters.partition(b";")[0] or b"0"), parameters)
        elif name not in _HARMLESS:
            self.model.lose()

    def _mode(self, private: bytes, mode: int, is_on: bool) -> None:
        if not private:
            if mode not in _MODES:
                self.model.lose()
            else:
                self._trouble(_MODES[mode], is_on != (mode == 12))
        elif mode in _PRIVATE_MODES:
            self._trouble(_PRIVATE_MODES[mode], is_on)
            self.model.lose()
        elif mode == 7:
            self._trouble(_NO_WRAP, not is_on)
        elif mode == 1048:
            (self._save if is_on else self._restore)()
        elif mode in (47, 1047, 1049):
            self._screen(is_on, comes_back=mode == 1049)
        elif mode not in _HARMLESS_MODES:
            self.model.lose()

    def _screen(self, is_on: bool, *, comes_back: bool) -> None:
        if is_on == bool(self.trouble & ALTERNATE):
            self.model.lose()
            self.model.style |= UNKNOWN_STYLE
            self._first = None
            return
        self._trouble(ALTERNATE, is_on)
        before, first = self.model, self._first
        if is_on:
            self._first = _Saved(before, self.trouble & _OF_A_CURSOR) if comes_back else None
            self.model = LineModel(self._rows, before.width)
            self.model.line, self.model.style = before.line + 1, before.style
            self.model.lose()
        elif first is not None and comes_back:
            # Terminals come back to the cursor, and mostly to its style.
            self._first, self.model = None, first.model
            self.model.line = before.line + 1
            self.model.style |= UNKNOWN_STYLE if before.style else 0
            self.trouble |= first.trouble
            if self.model.column == self.model.width:
                self.model.lose_row()
        else:
            self._first = None
            self.model.lose()

    def _region(self, parameters: bytes) -> None:
        top, _, bottom = parameters.partition(b";")
        is_all = top in (b"", b"0", b"1") and (
            bottom in (b"", b"0") or (bottom.isdigit() and int(bottom[:6]) >= self._rows)
        )
        self._trouble(_REGION, not is_all)
        self.model.lose()

    def _save(self) -> None:
        self._saved_trouble = self.trouble & _OF_A_CURSOR

    def _restore(self) -> None:
        self.trouble |= self._saved_trouble
        self.model.lose()
        self.model.style |= UNKNOWN_STYLE

    def _escape(self, rest: bytes) -> None:
        model = self.model
        if rest in (b"7", b"8"):
            (self._save if rest == b"7" else self._restore)()
        elif rest in (b"D", b"E"):
            self._down()
            if rest == b"E":
                model.go_to(0)
        elif rest == b"c":
            self.trouble, self._first, self._has_tabs = 0, None, True
            model.lose()
            model.style = 0
            model.column = 0
            model.erase_all()
        elif rest[:1] == b"(":
            self._trouble(_CHARACTERS, rest != b"(B")
        elif rest == b"H":
            self._has_tabs = False
        elif rest not in (b"=", b">", b"\\", b"%G", b" F", b" G") and rest[:1] not in (b")", b"*", b"+"):
            model.lose()

    def _command(self, text: bytes) -> None:
        if text.startswith(b"8;"):
            self._trouble(_LINK, bool(text.split(b";", 2)[2:] != [b""]))
        elif _HARMLESS_COMMANDS.match(text) is None or b"\n" in text:
            self.model.lose()


_Move = Callable[[LineModel, int, bytes], None]


def _erase_in_row(model: LineModel, kind: int, _: bytes) -> None:
    (model.erase_right, model.erase_left, model.erase_row)[kind]() if kind < 3 else model.lose_row()


def _erase_screen(model: LineModel, kind: int, _: bytes) -> None:
    if kind == 3:
        return  # what has scrolled out
    (model.erase_below, model.erase_left, model.erase_all)[kind]() if kind < 3 else model.lose()


def _place(model: LineModel, _: int, parameters: bytes) -> None:
    model.lose()
    model.go_to(max(1, int(parameters.partition(b";")[2] or b"1")) - 1)


def _to_line(model: LineModel, count: int, _: bytes, *, is_down: bool) -> None:
    (model.go_down if is_down else model.go_up)(max(1, count))
    model.go_to(0)


_MOVES: Final[dict[bytes, _Move]] = {
    b"A": lambda model, count, _: model.go_up(max(1, count)),
    b"B": lambda model, count, _: model.go_down(max(1, count)),
    b"e": lambda model, count, _: model.go_down(max(1, count)),
    b"C": lambda model, count, _: model.go_right(max(1, count)),
    b"a": lambda model, count, _: model.go_right(max(1, count)),
    b"D": lambda model, count, _: model.go_left(max(1, count)),
    b"E": lambda model, count, _: _to_line(model, count, b"", is_down=True),
    b"F": lambda model, count, _: _to_line(model, count, b"", is_down=False),
    b"G": lambda model, count, _: model.go_to(max(1, count) - 1),
    b"`": lambda model, count, _: model.go_to(max(1, count) - 1),
    b"H": _place,
    b"f": _place,
    b"J": _erase_screen,
    b"K": _erase_in_row,
    b"P": lambda model, count, _: model.delete(max(1, count)),
    b"@": lambda model, count, _: model.insert(max(1, count)),
    b"X": lambda model, count, _: model.erase(max(1, count)),
}
