"""What may be at the far end of a slow line, made up: programs that echo, redraw or keep silent.

Each takes keys and returns pieces of output.  `SECRET` characters are typed only where nothing is echoed, so
none of them may ever be on a screen.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pyte
from pyte import modes

SECRET = "QXZ"
ROWS, COLUMNS = 6, 24
ALTERNATE = 1049 << 5  # as pyte numbers private modes


class Terminal(pyte.Screen):
    """A screen of pyte with an alternate one; `drawn` is what is on it, to be compared."""

    def __init__(self, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self._first: tuple[object, pyte.screens.Cursor] | None = None
        super().__init__(columns, rows)
        self.set_mode(modes.LNM)
        self.reset_mode(modes.LNM)
        self._stream = pyte.ByteStream(self)

    def write(self, data: bytes) -> None:
        """Take bytes as a terminal does."""
        self._stream.feed(data)

    def set_mode(self, *mode: int, **kwargs: bool) -> None:
        """Also know the alternate screen."""
        if 1049 in mode and kwargs.get("private") and self._first is None:
            self._first = copy.deepcopy(self.buffer), copy.copy(self.cursor)
            self.erase_in_display(2)
        super().set_mode(*mode, **kwargs)

    def reset_mode(self, *mode: int, **kwargs: bool) -> None:
        """Come back from it."""
        if 1049 in mode and kwargs.get("private") and self._first is not None:
            (self.buffer, self.cursor), self._first = self._first, None  # type: ignore[assignment]
        super().reset_mode(*mode, **kwargs)

    @property
    def drawn(self) -> tuple[object, ...]:
        """All cells with their styles, the cursor with its style, the modes."""
        cells = [[self.buffer[y][x] for x in range(self.columns)] for y in range(self.lines)]
        cursor = (self.cursor.x, self.cursor.y, self.cursor.attrs)
        return cells, cursor, self.mode, self.margins

    def shows(self, text: str) -> bool:
        """Tell whether one of these characters is on the screen."""
        # Not by `display`, which fails where half of a wide character was overwritten.
        return any(set(self.buffer[y][x].data) & set(text) for y in range(self.lines) for x in range(COLUMNS))


class Shell:
    """A shell with a line editor, which runs commands: `p` asks for a password, `v` is a full-screen program.

    `manner` is how it draws: `bash`, `zsh`, or `tty` for a line that the kernel edits.  `stars`: its password
    prompt shows a star for each key.
    """

    def __init__(self, manner: str, prompt: bytes, *, stars: bool = False) -> None:
        self._manner = manner
        self._prompt = prompt
        self._stars = stars
        self._line = bytearray()
        self._at = 0
        self._mode = "line"
        self._column = 0

    @property
    def asks_for_password(self) -> bool:
        """True while no key is echoed."""
        return self._mode == "password"

    def begin(self) -> list[bytes]:
        """Draw the first prompt, below a line of welcome."""
        return [b"welcome\r\n" + self._prompted()]

    def key(self, code: int) -> list[bytes]:
        """Take a key."""
        if self._mode == "password":
            return self._password(code)
        if self._mode == "screen":
            return self._full_screen(code)
        if code == 0x0D:
            return self._run()
        if code == 0x7F:
            return self._erase()
        if code == 0x02:  # one to the left
            if self._at == 0:
                return [b"\a"]
            self._at -= 1
            return [b"\b"]
        if code == 0x15:  # all away
            count, self._line, self._at = self._at, bytearray(), 0
            return [b"\b" * count + b"\x1b[K"]
        if not 0x20 <= code < 0x7F or len(self._line) >= 60:
            return [b"\a"]
        return self._insert(code)

    def _prompted(self) -> bytes:
        self._line, self._at, self._mode = bytearray(), 0, "line"
        if self._manner == "zsh":
            return b"\r\x1b[0m\x1b[27m\x1b[24m\x1b[J" + self._prompt + b"\x1b[K\x1b[?2004h"
        return (b"\x1b[?2004h" if self._manner == "bash" else b"") + self._prompt

    def _insert(self, code: int) -> list[bytes]:
        key, rest = bytes((code,)), bytes(self._line[self._at :])
        before = bytes(self._line[: self._at])
        self._line.insert(self._at, code)
        self._at += 1
        if rest:
            if self._manner == "bash":
                return [b"\x1b[1@" + key]
            return [key + rest + b"\b" * len(rest)]
        if self._manner == "zsh" and before:
            if len(before) == 2:  # the first word gets a colour
                return [b"\b\b\x1b[32m" + before + key + b"\x1b[39m"]
            return [b"\b" + before[-1:] + key]
        return [key]

    def _erase(self) -> list[bytes]:
        if self._at == 0:
            return [b"\a"]
        self._at -= 1
        del self._line[self._at]
        rest = bytes(self._line[self._at :])
        if self._manner == "bash" and rest:
            return [b"\b\x1b[1P"]
        if self._manner == "bash":
            return [b"\b\x1b[K"]
        return [b"\b" + rest + b" " + b"\b" * (len(rest) + 1)]

    def _run(self) -> list[bytes]:
        line = bytes(self._line)
        end = b"\x1b[?2004l\r\r\n" if self._manner != "tty" else b"\r\n"
        if line.startswith(b"p"):
            self._mode = "password"
            return [end, b"\x1b[1mPassword\x1b[0m: "]
        if line.startswith(b"v"):
            self._mode = "screen"
            return [end + b"\x1b[?1049h\x1b[2J\x1b[H~ top\r\n~\r\n\x1b[7mstatus\x1b[m\x1b[1;1H"]
        if line.startswith(b"c"):
            return [end + b"\x1b[H\x1b[2J" + self._prompted()]
        if line.startswith(b"w"):
            return [end + "größe 漢字 é\r\n".encode() + self._prompted()]
        if line.startswith(b"s"):
            return [end, *[b"line %d\r\n" % number for number in range(len(line))], self._prompted()]
        return [end + b"\x1b[31mno\x1b[0m " + line + b"\r\n", self._prompted()]

    def _password(self, code: int) -> list[bytes]:
        if code == 0x0D:
            return [b"\r\n" + self._prompted()]
        return [b"*"] if self._stars and code >= 0x20 else []

    def _full_screen(self, code: int) -> list[bytes]:
        if code == ord("q"):
            return [b"\x1b[%d;1H\x1b[K\x1b[?1049l" % ROWS + self._prompted()]
        if code == ord("i"):
            return [b"\x1b[2;3Hinserted\x1b[K"]
        if 0x20 <= code < 0x7F:
            return [bytes((code,))]
        return [b"\x1b[3;5H"]


class Echo:
    """Echoes keys, and nothing else."""

    asks_for_password = False

    def begin(self) -> list[bytes]:
        """Draw a line."""
        return [b"\r\n"]

    def key(self, code: int) -> list[bytes]:
        """Take a key."""
        if code == 0x0D:
            return [b"\r\n"]
        if code == 0x7F:
            return [b"\b \b"]
        return [bytes((code,))] if code >= 0x20 else [b"^", bytes((code + 64,))]


def cut(pieces: Sequence[bytes], places: Sequence[int]) -> list[bytes]:
    """Return pieces with some of them in two, as a network may bring them."""
    found = []
    for number, piece in enumerate(pieces):
        at = places[number % len(places)] if places else 0
        if 0 < at < len(piece):
            found += [piece[:at], piece[at:]]
        else:
            found.append(piece)
    return found
