"""What is on the screen after `attach`, compared cell by cell with the program on a terminal of that size."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pyte
import pytest

from tests.box.boxes import Person, Screen
from tests.box.test_shell import wait_for_prompt
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

WAIT_S = 30.0
LOOKS = 3  # some tenths of a second
ROWS, COLUMNS = 31, 97
PROGRAMS = {
    "vim": "vim -u NONE -N -i NONE -n --cmd 'set t_RV= t_RB= t_RF= t_u7= noruler' text",
    "less": "LESSHISTFILE=- less +120 text",
    "tmux": "tmux -L {socket} -f /dev/null new-session 'less +120 text' ';' set status off",
    "painter": "sh painter",
}
# Draws the whole screen whenever the size has changed, as top and htop do.
PAINTER = """
draw() {
    set -- $(stty size)
    printf '\\033[H\\033[2J\\033[7mtop of %s by %s\\033[0m\\r\\n' "$1" "$2"
    n=2; while [ $n -lt $1 ]; do printf 'row %s\\r\\n' $n; n=$((n + 1)); done
    printf 'the last row'
}
trap draw WINCH
trap 'exit 0' TERM
draw
while :; do sleep 0.1; done
"""


class Seen:
    """A terminal's cells, fed with what a program writes."""

    def __init__(self, rows: int, columns: int) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    def rows(self, screen: Screen) -> list[str]:
        """Take what has come by now; return the rows."""
        self._stream.feed(screen.available())
        return [row.rstrip() for row in self._screen.display]


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_screen_is_as_if_the_program_had_begun_there(
    name: str, person: Person, server: ServerProcess, tmp_path: Path
) -> None:
    if name != "painter" and shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    (tmp_path / "text").write_text("".join(f"line {number} of the text\n" for number in range(1, 400)))
    (tmp_path / "painter").write_text(PAINTER)
    sockets = [f"execserver-test-{place}-{os.getpid()}" for place in ("here", "box")]
    here, there = (
        f"cd {tmp_path}; exec env TERM=linux {PROGRAMS[name].format(socket=socket)}" for socket in sockets
    )
    try:
        with Screen(["sh", "-c", here], person.environ, tmp_path, ROWS, COLUMNS) as local:
            wanted = settled(local, Seen(ROWS, COLUMNS))
        compare_after_attach(name, there, wanted, person, server)
    finally:
        if name == "tmux":  # its server outlives whoever looks
            for socket in sockets:
                subprocess.run(["tmux", "-L", socket, "kill-server"], stderr=subprocess.DEVNULL, check=False)


def compare_after_attach(
    name: str, command: str, wanted: list[str], person: Person, server: ServerProcess
) -> None:
    with person.at_terminal("shell", server.url, "--name", name, TERM="linux") as screen:
        wait_for_prompt(screen)
        screen.type(command.encode() + b"\r")
        settled(screen, Seen(24, 80))
        os.kill(screen.pid, signal.SIGKILL)
        screen.ended()
    with person.at_terminal("attach", server.url, name, rows=ROWS, cols=COLUMNS, TERM="linux") as screen:
        seen = Seen(ROWS, COLUMNS)
        wait_for(wanted, screen, seen)
        screen.resize(24, 80)
        # Programs miss a change that comes while they draw for another one, on any terminal.
        wait_until(lambda: differing(wanted, seen.rows(screen)), WAIT_S)
        screen.resize(ROWS, COLUMNS)
        wait_for(wanted, screen, seen)
    assert person.run("kill", server.url, "-s", "KILL", name).returncode in (0, 1, 2)


def wait_for(wanted: list[str], screen: Screen, seen: Seen) -> None:
    """Wait until the screen shows what is wanted, and goes on to: it is drawn in parts, and several times."""
    looks, found = 0, wanted

    def is_shown() -> bool:
        nonlocal looks, found
        found = seen.rows(screen)
        looks = looks + 1 if differing(wanted, found) == [] else 0
        return looks >= LOOKS

    try:
        wait_until(is_shown, WAIT_S)
    except AssertionError:
        assert differing(wanted, found) == []
        raise


def differing(wanted: list[str], found: list[str]) -> list[tuple[str, str]]:
    # The last row is a message of vim and less, which is gone when they draw again.
    return [pair for pair in zip(wanted[:-1], found[:-1], strict=True) if pair[0] != pair[1]]


def settled(screen: Screen, seen: Seen) -> list[str]:
    """Return the rows once all but the last are full, and do not change any more."""
    last: list[list[str]] = [[], []]

    def is_settled() -> bool:
        last[:] = [*last[1:], seen.rows(screen)]
        # Each program fills them; fewer are a part of what it draws.
        return last[0] == last[1] and all(last[1][:-1])

    wait_until(is_settled, WAIT_S)
    return last[1]
