"""Keys that show before the box answers: the screen is what the far side draws, and no password is shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.box.keys.line_reader import LineReader
from execserver.box.keys.prediction import MOST_KEYS, Prediction
from tests.box.far_side import COLUMNS, ROWS, SECRET, Echo, Shell, Terminal, cut

PROMPTS = [b"$ ", b"\x1b[01;32mme@box\x1b[00m:\x1b[34m~\x1b[00m$ ", "\u276f ".encode(), b">>> "]
LETTERS = st.sampled_from([*b"abcplsvwq -*."])
CONTROLS = st.sampled_from([0x0D, 0x0D, 0x7F, 0x7F, 0x02, 0x15, 0x01])
TYPED = st.one_of(LETTERS, LETTERS, LETTERS, LETTERS, CONTROLS).map(lambda code: ("key", code))
COME = st.integers(1, 3).map(lambda count: ("come", count))
WORD = st.sampled_from([b"ab", b"l", b"bcb"]).map(lambda text: ("word", text))  # each key is answered
COMMAND = st.sampled_from([b"p\r", b"sss\r", b"c\r", b"w\r", b"vi", b"q"]).map(lambda text: ("word", text))
FLURRY = st.tuples(st.sampled_from([b"ab", b"l"]), st.text("abc.*\x7f", min_size=1, max_size=5)).map(
    lambda texts: ("flurry", texts)
)  # first some that are answered
WAIT = st.sampled_from([0.001, 0.05, 0.3, 2.0]).map(lambda seconds: ("wait", seconds))
# What somebody else may write at any time, sequences of every kind among it.
NOISE = st.sampled_from(
    [
        *(b"\r\njob done\r\n", b"x", b"\x1b]0;title\x07", b"\x1b[31m", b"\x1b[0m", b"\x1b[m", b"\x1b[7m"),
        *(b"\x1b[3;4H", b"\x1b[2J", b"\x1b[H", b"\x1b[J", b"\x1b[1J", b"\x1b[K", b"\x1b[1K", b"\x1b[2K"),
        *(b"\x1b[2C", b"\x1b[3D", b"\x1b[A", b"\x1b[2B", b"\x1b[5G", b"\x1b[2P", b"\x1b[2@", b"\x1b[3X"),
        *(b"\x1b[2;4r", b"\x1b[r", b"\x1b7", b"\x1b8", b"\x1bM", b"\x1bD", b"\t", b"\b", b"\r", b"\n"),
        *(b"\x1b[4h", b"\x1b[4l", b"\x1b[?7l", b"\x1b[?7h", b"\x1b[L", b"\x1b[M"),
        *(b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[3d", b"\x1b[44m", b"\x1b[4m", b"\x1b[39;49m", b"\x1bc"),
        *("é".encode(), "漢".encode(), "e\u0301".encode(), b"\xff", b" " * 7, b"abc" * 9, b"\x1b[1"),
    ]
)
NOISES = NOISE.map(lambda data: ("noise", data))
MANNERS = st.sampled_from(["bash", "zsh", "tty"])


class Line:
    """Both ends and what is between them; `screen` shows predictions, `plain` is the output alone."""

    def __init__(self, far: Shell | Echo, *, is_marked: bool = False, cuts: Sequence[int] = ()) -> None:
        self.screen, self.plain = Terminal(), Terminal()
        reader = LineReader(ROWS, COLUMNS)
        self.prediction = Prediction(reader)
        self.prediction.is_marked = is_marked
        self.prediction.soonest = 0.02
        self.now = 0.0
        self.far = far
        self.coming: deque[bytes] = deque()
        self._reader = reader
        self._cuts = cuts
        self.coming.extend(far.begin())

    def type(self, code: int) -> bytes:
        """Type a key; return what is drawn at once."""
        drawn = self.prediction.typed(bytes((code,)), self.now)
        self.screen.write(drawn)
        self.coming.extend(cut(self.far.key(code), self._cuts))
        return drawn

    def come(self, count: int = 10_000) -> None:
        """Have pieces of output come."""
        for _ in range(min(count, len(self.coming))):
            self.output(self.coming.popleft())

    def output(self, data: bytes) -> None:
        """Have this output come."""
        self.screen.write(self.prediction.take_back())
        assert self.screen.drawn == self.plain.drawn
        self._reader.feed(data)
        self.screen.write(data)
        self.plain.write(data)
        assert self.screen.drawn == self.plain.drawn
        self.screen.write(self.prediction.follow(self.now))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.screen.write(self.prediction.expire(self.now, 1.0))

    def end(self) -> None:
        """Compare at the end."""
        self.screen.write(self.prediction.take_back())
        assert self.screen.drawn == self.plain.drawn


def typing(line: Line, text: bytes) -> None:
    """Type a text, and let each key be answered."""
    for code in text:
        line.type(code)
        line.now += 0.1
        line.come()


def play(line: Line, events: Sequence[tuple[str, Any]], secrets: Sequence[int] = ()) -> int:
    """Play events; return how many times keys have shown at once."""
    shown = chosen = 0
    for kind, value in events:
        if kind == "key":
            code = value
            if secrets and line.far.asks_for_password and code >= 0x20 and code not in b"\x7f*":
                chosen += 1
                code = secrets[chosen % len(secrets)]
            shown += bool(line.type(code))
        elif kind == "word" and not line.far.asks_for_password:
            line.come()
            typing(line, value)
        elif kind == "flurry" and not line.far.asks_for_password:
            line.come()
            typing(line, value[0])
            shown += sum(bool(line.type(code)) for code in value[1].encode())
        elif kind == "come":
            line.come(value)
        elif kind == "wait":
            line.wait(value)
        elif kind == "noise":
            line.output(value)
        assert not line.screen.shows(SECRET)
    line.come()
    line.end()
    return shown


@given(
    MANNERS,
    st.sampled_from(PROMPTS),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.one_of(TYPED, TYPED, TYPED, COME, COME, WORD, FLURRY, COMMAND, WAIT), max_size=50),
    st.lists(st.sampled_from([*SECRET.encode()]), min_size=1, max_size=4),
)
def test_a_shell_looks_as_without_predictions(
    manner: str,
    prompt: bytes,
    stars: bool,
    is_marked: bool,
    cuts: list[int],
    events: list[tuple[str, Any]],
    secrets: list[int],
) -> None:
    play(Line(Shell(manner, prompt, stars=stars), is_marked=is_marked, cuts=cuts), events, secrets)


@given(
    MANNERS,
    st.booleans(),
    st.lists(st.one_of(TYPED, COME, WORD, FLURRY, COMMAND, WAIT, NOISES, NOISES, NOISES), max_size=60),
)
def test_whatever_somebody_writes_in_between_is_kept(
    manner: str, is_echo: bool, events: list[tuple[str, Any]]
) -> None:
    play(Line(Echo() if is_echo else Shell(manner, b"$ ")), events)


def at_prompt(manner: str = "bash") -> Line:
    """Return a line with a prompt, at which one key has come back."""
    line = Line(Shell(manner, b"$ "))
    line.come()
    typing(line, b"a")
    return line


@pytest.mark.parametrize("manner", ["bash", "zsh", "tty"])
def test_a_key_is_drawn_at_once(manner: str) -> None:
    line = at_prompt(manner)
    assert line.type(ord("b")) == b"b"
    assert line.type(ord("c")) == b"c"
    line.come(1)
    assert line.screen.display[1].startswith("$ abc ")
    assert not line.plain.display[1].startswith("$ abc ")
    line.come()
    assert line.screen.drawn == line.plain.drawn


def test_a_backspace_is_drawn_at_once_over_what_was_typed() -> None:
    line = at_prompt()
    line.type(ord("b"))
    for text in ("$ a ", "$   "):
        line.type(0x7F)
        assert line.screen.display[1].startswith(text)
    assert line.type(0x7F) == b""  # the prompt is not ours
    line.come()
    line.end()


def test_what_is_long_under_way_is_underlined() -> None:
    line = at_prompt()
    line.prediction.is_marked = True
    assert line.type(ord("b")) == b"\x1b[4mb\x1b[24m"


@pytest.mark.parametrize("key", [0x0D, 0x03, 0x02, 0x09, 0xC3])
def test_after_another_key_nothing_shows_until_one_has_come_back(key: int) -> None:
    line = at_prompt()
    line.type(key)
    assert line.type(ord("b")) == b""
    line.come(1)
    assert line.type(ord("c")) == b""


@pytest.mark.parametrize("stars", [False, True])
def test_a_password_does_not_show(stars: bool) -> None:
    line = Line(Shell("bash", b"$ ", stars=stars))
    line.come()
    typing(line, b"p\r")
    for code in b"*Q*X.Z*QQ":
        assert line.type(code) == b""
        line.now += 0.1
        line.come()
    typing(line, b"\r")
    line.end()


def test_a_wrong_prediction_goes_and_none_is_made_until_the_next_line() -> None:
    line = at_prompt()
    line.type(ord("b"))
    line.now += 0.1
    line.output(b"\r\nwho knows\r\n$ ")
    assert line.screen.drawn == line.plain.drawn
    assert line.type(ord("c")) == b""


def test_what_does_not_come_back_goes_after_a_while() -> None:
    line = at_prompt()
    line.type(ord("b"))
    line.wait(0.9)
    assert line.screen.display[1].startswith("$ ab")
    line.wait(0.2)
    assert line.screen.drawn == line.plain.drawn
    assert line.type(ord("c")) == b""


def test_a_silent_program_does_not_outlast_its_line() -> None:
    line = Line(Shell("bash", b"$ "))
    line.come()
    typing(line, b"p\r")
    for code in b"QX\r":
        line.type(code)
    line.wait(2.0)
    line.come()
    typing(line, b"a")
    assert line.type(ord("b")) == b"b"


def test_nothing_shows_in_the_last_column() -> None:
    line = at_prompt()
    drawn = [line.type(ord("b")) for _ in range(COLUMNS)]
    assert drawn.index(b"") == COLUMNS - 1 - len("$ a")
    line.now += 0.1
    line.come()
    line.end()


def test_no_more_keys_are_kept_than_is_said() -> None:
    line = at_prompt()
    for _ in range(10 * MOST_KEYS):
        line.prediction.typed(b"\rab", line.now)
    assert len(line.prediction._keys) <= MOST_KEYS + 1


@pytest.mark.parametrize(
    "before",
    [b"\x1b[44m", b"\x1b[1m", b"\x1b[", b"\x1b]0;title", b"\xc3", b"\x1b[?1049h\r", b"\x1b[4h", b"\x1b[2;3r"],
)
def test_nothing_shows_where_it_could_not_be_taken_back(before: bytes) -> None:
    line = at_prompt()
    line.output(before)
    assert line.type(ord("b")) == b""
