"""Keys on a line that is held: they are on the terminal before anything has left this machine."""

from __future__ import annotations

import shutil
import sys
from collections import deque
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.box.descriptors import Sink
from execserver.box.keys import local_echo
from execserver.box.keys.local_echo import LocalEcho
from execserver.box.manner import Predict
from execserver.box.terminal import Size
from tests.box.boxes import Person, Screen
from tests.box.far_side import COLUMNS, ROWS, Shell, Terminal
from tests.support.held_line import HeldLine
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

WAIT_S = 30.0
ALWAYS = ("--predict", "always")
PROMPT = b"box> "


@pytest.fixture
def line(server: ServerProcess) -> Iterator[HeldLine]:
    """A way to the server that can be held."""
    line = HeldLine(server.url)
    yield line
    line.stop()


def type_and_see(screen: Screen, line: HeldLine, first: bytes, more: bytes) -> bytes:
    """Type keys of which the first is answered; return all from the ones behind it to their echo."""
    for code in first:
        screen.type(bytes((code,)))
        screen.wait_for(bytes((code,)))
    line.hold()
    screen.type(more)
    seen = screen.wait_for(more)
    line.release()
    return seen


@pytest.mark.parametrize("program", ["bash", "zsh", "python3", "cat"])
def test_a_key_shows_before_it_has_left(
    program: str, person: Person, line: HeldLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    words = {
        "bash": ["bash", "--norc", "-i"],
        "zsh": ["zsh", "-f", "-i"],
        "python3": [sys.executable, "-q", "-i", "-c", "import sys; sys.ps1 = 'box> '"],
        "cat": ["cat"],
    }[program]
    env = ("-e", f"PS1={PROMPT.decode()}", "-e", "PROMPT=" + PROMPT.decode())
    with person.at_terminal("run", line.url, "-t", *ALWAYS, *env, "--", *words) as screen:
        wait_until(screen.is_raw, WAIT_S)
        if program != "cat":
            screen.wait_for(PROMPT)
        screen.type(b"\r")  # a new line: where this one began is not known
        screen.wait_for(b"\r\n\r\n" if program == "cat" else PROMPT)
        seen = type_and_see(screen, line, b"a", b"bc")
        assert b"\x1b" not in seen
        screen.type(b"\x15\x04")
        assert screen.ended() in (0, 1)


def test_a_password_does_not_show(person: Person, line: HeldLine) -> None:
    words = ["bash", "--norc", "-i"]
    with person.at_terminal("run", line.url, "-t", *ALWAYS, "-e", "PS1=box> ", "--", *words) as screen:
        wait_until(screen.is_raw, WAIT_S)
        screen.wait_for(PROMPT)
        screen.type(b"read -rsp 'say: ' x; echo \"got $x\"\r")
        screen.wait_for(b"\rsay: ")
        line.hold()
        screen.type(b"QXZ")
        assert screen.available() == b""
        line.release()
        screen.type(b"\r")
        assert screen.wait_for(b"QXZ") == b"got QXZ"
        screen.wait_for(PROMPT)
        type_and_see(screen, line, b"e", b"xit")
        screen.type(b"\r")
        assert screen.ended() == 0


@pytest.mark.parametrize("program", ["vim", "less"])
def test_a_full_screen_program_has_its_screen_alone(program: str, person: Person, line: HeldLine) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program}")
    command = {"vim": b"vim -u NONE -N -i NONE -n +startinsert\r", "less": b"ls / | less +G\r"}[program]
    words = ["bash", "--norc", "-i"]
    with person.at_terminal("run", line.url, "-t", *ALWAYS, "-e", "PS1=box> ", "--", *words) as screen:
        wait_until(screen.is_raw, WAIT_S)
        screen.wait_for(PROMPT)
        screen.type(command)
        screen.wait_for(b"\x1b[?1049h")
        screen.available()
        line.hold()
        screen.type(b"ab")
        assert screen.available() == b""
        line.release()
        screen.type({"vim": b"\x1b:q!\r", "less": b"\x15q"}[program])
        screen.wait_for(b"\x1b[?1049l")
        screen.wait_for(PROMPT)
        type_and_see(screen, line, b"e", b"xit")  # the shell's screen is known again
        screen.type(b"\r")
        assert screen.ended() == 0


@pytest.mark.parametrize(
    ("option", "term"),
    [("never", "xterm"), ("adaptive", "xterm"), ("always", "dumb"), ("always", "eterm-color")],
)
def test_nothing_shows_where_it_is_not_wanted(option: str, term: str, person: Person, line: HeldLine) -> None:
    words = ("run", line.url, "-t", "--predict", option, "--", "cat")
    with person.at_terminal(*words, TERM=term) as screen:
        wait_until(screen.is_raw, WAIT_S)
        screen.type(b"\r")
        screen.wait_for(b"\r\n\r\n")
        screen.type(b"a")
        screen.wait_for(b"a")
        line.hold()
        screen.type(b"b")
        assert screen.available() == b""
        line.release()
        screen.wait_for(b"b")


def test_a_message_of_the_client_stands_for_itself(person: Person, server: ServerProcess) -> None:
    line = HeldLine(server.url)
    try:
        with person.at_terminal("shell", line.url, *ALWAYS, "-e", "PS1=box> ") as screen:
            wait_until(screen.is_raw, WAIT_S)
            screen.type(b"\r~?")
            screen.wait_for(b"at the beginning of a line)\r\n")
            screen.type(b"~.")
            assert screen.ended() == 130
    finally:
        line.stop()


class FullTerminal:
    """A sink that takes as many bytes at once as it is told to, and all when it may wait."""

    def __init__(self, takes: list[int]) -> None:
        self.terminal = Terminal()
        self.takes = deque(takes)

    def write_at_once(self, data: bytes) -> int:
        """As `Sink.write_at_once`."""
        count = min(len(data), self.takes.popleft() if self.takes else len(data))
        self.terminal.write(data[:count])
        return count

    def write(self, data: bytes) -> None:
        """As `Sink.write`."""
        self.terminal.write(data)

    def close(self) -> None:
        """As `Sink.close`."""


@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.lists(
        st.one_of(
            st.sampled_from([*b"abc\x7f\r"]),
            st.sampled_from(["come", "come", "withdraw", "expire", "lost", "back", "note"]),
        ),
        max_size=60,
    ),
)
def test_a_terminal_that_takes_little_has_all_in_the_end(takes: list[int], events: list[int | str]) -> None:
    scene = Scene(takes)
    for event in events:
        scene.take(event)
    scene.end()


class Scene:
    """A shell, a terminal that shows its output alone, and one with predictions that is full at times."""

    def __init__(self, takes: list[int]) -> None:
        self.sink, self.plain, self.shell = FullTerminal(takes), Terminal(), Shell("bash", b"$ ")
        echo = LocalEcho(lambda: Size(ROWS, COLUMNS), Predict.ALWAYS)
        self.echo = echo.begin(cast(Sink, self.sink))
        self.coming = deque([b"\r\n", *self.shell.begin()])
        self.waiting = b""

    def take(self, event: int | str) -> None:
        """Type a key, or have something else happen."""
        if isinstance(event, int):
            self.echo.typed(bytes((event,)))
            self.coming.extend(self.shell.key(event))
        elif event == "come":
            self.come()
        elif event == "withdraw":
            self.echo.withdraw()
        elif event == "expire":
            self.echo._expire()
        elif event == "note":
            self.note(b"\r\nnote\r\n")
        else:
            self.echo.lost(event == "back")

    def come(self) -> None:
        """Have a piece of output come; nothing overtakes what waits, as in the client."""
        if self.waiting:
            self.echo.write(self.waiting)
            self.waiting = b""
        elif self.coming:
            data = self.coming.popleft()
            self.plain.write(data)
            self.waiting = data[self.echo.write_at_once(data) :]

    def note(self, text: bytes) -> None:
        """Write something else to the terminal, which waits until it is not full."""
        self.echo.withdraw()
        if self.waiting or self.echo._owed:
            return
        self.sink.write(text)
        self.plain.write(text)
        self.echo.note(text)

    def end(self) -> None:
        """Compare at the end."""
        while self.coming or self.waiting:
            self.come()
        self.sink.takes.clear()
        self.echo.close()
        assert self.sink.terminal.drawn == self.plain.drawn


def test_on_a_fast_link_nothing_shows_and_on_a_slow_one_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(local_echo, "monotonic", lambda: now)
    sink = FullTerminal([])
    echo = LocalEcho(lambda: Size(ROWS, COLUMNS), Predict.ADAPTIVE).begin(cast(Sink, sink))
    echo.write_at_once(b"\r\n$ ")

    def typed(seconds: float, times: int) -> bool:
        """Type keys whose echoes take so long; return whether the last one showed at once."""
        nonlocal now
        shows = False
        for _ in range(times):
            before = sink.terminal.drawn
            echo.typed(b"k")
            shows = sink.terminal.drawn != before
            now += seconds
            echo.write_at_once(b"k")
            echo.typed(b"\x7f")
            echo.write_at_once(b"\b \b")
        return shows

    assert not typed(0.01, 20)
    assert typed(0.2, 20)
    assert not typed(0.005, 40)
    echo.close()
