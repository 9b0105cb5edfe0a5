"""Records how one gets from the file to a shell on another machine, for the README.

    python -m tools.record_demo PROGRAM...

PROGRAM is the words that start execserver.  A real server and real commands, typed into a real shell on a
real terminal; only the two machines are one, with two host names where that is allowed.  Writes
`docs/shell.cast` and the picture of it, `docs/shell.svg`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import ptyprocess

from tools.problems import say
from tools.terminal_svg import Cast, Piece, svg

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
COLUMNS, ROWS = 80, 40
_URL: Final = "ws://127.0.0.1:7070"
_STEP_LIMIT_S: Final = 30.0
_KEY_S: Final = 0.03  # between two keys, as a person types
_PAUSE_S: Final = 0.7
_SCRIPTS: Final = {
    "greet": "#!/bin/sh\necho hello from $(hostname)\n",
    "build": "#!/bin/sh\nfor i in 1 2 3; do echo step $i; sleep 1; done\n",
}
_PROMPT: Final = r"\[\e[1;{colour}m\]{name}$\[\e[0m\] "


class Recorder:
    """What comes from the terminals, one after the other, with its times."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._begun = time.monotonic()

    def note(self, data: bytes) -> None:
        """Add what was written just now."""
        self.pieces.append(Piece(time.monotonic() - self._begun, data.decode()))


class Shell:
    """A shell on a terminal of its own."""

    def __init__(self, recorder: Recorder, home: Path, prompt: str, *words: str) -> None:
        self._recorder = recorder
        self._unread = b""
        environ = {
            "HOME": str(home),
            "PATH": f"{home}/bin:{os.environ['PATH']}",
            "TERM": "xterm",
            "PS1": prompt,
            "SHELL": "/bin/bash",
            "INPUTRC": f"{home}/inputrc",
            "HISTFILE": "/dev/null",
        }
        command = [*words, "bash", "--norc", "--noprofile", "-i"]
        self._process = ptyprocess.PtyProcess.spawn(
            command, env=environ, cwd=str(home), dimensions=(ROWS, COLUMNS)
        )

    def wait_for(self, text: bytes) -> None:
        """Show what is written until a text has come.  Raises TimeoutError, EOFError."""
        deadline = time.monotonic() + _STEP_LIMIT_S
        while text not in self._unread:
            if not select.select([self._process.fd], [], [], deadline - time.monotonic())[0]:
                raise TimeoutError(f"{text!r} does not come: {self._unread!r}")
            data = self._process.read(65536)
            self._unread += data
            self._recorder.note(data)
        self._unread = self._unread.partition(text)[2]

    def type(self, line: str, enter: str = "\r") -> None:
        """Type a line, and show its echo."""
        time.sleep(_PAUSE_S)
        for key in line + enter:
            self._process.write(key.encode())
            time.sleep(_KEY_S)
            while select.select([self._process.fd], [], [], 0)[0]:
                data = self._process.read(65536)
                self._unread += data
                self._recorder.note(data)

    def close(self) -> None:
        """End it."""
        self._process.kill(signal.SIGHUP)
        self._process.close(force=True)


def furnished(home: Path, program: list[str]) -> None:
    """Put the program and what the shells read into a home."""
    (home / "bin").mkdir()
    launcher = home / "bin" / "execserver"
    words = " ".join(f"'{word}'" for word in program)
    launcher.write_text(f'#!/bin/sh\nPYTHONPATH={DOCS.parent} exec {words} "$@"\n')
    for name, script in _SCRIPTS.items():
        (home / name).write_text(script)
    for path in (launcher, *(home / name for name in _SCRIPTS)):
        path.chmod(0o755)
    (home / "inputrc").write_text("set enable-bracketed-paste off\n")
    (home / ".bash_profile").write_text(f"PS1='{_PROMPT.format(colour=36, name='dev')}'\n")
    (home / "work").mkdir()


def named(name: str) -> list[str]:
    """Return the words that give what follows a host name of its own; none where that is not allowed."""
    words = ["unshare", "-u", "sh", "-c", 'hostname "$0" && exec "$@"', name]
    done = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if done.returncode == 0 else []


def record(home: Path) -> Cast:
    """Play the session.  Raises TimeoutError or EOFError when something does not come."""
    recorder = Recorder()
    dev = Shell(recorder, home, _PROMPT.format(colour=36, name="dev"), *named("dev"))
    laptop = None
    try:
        dev.wait_for(b"$")
        dev.type(f"execserver --listen {_URL}")
        dev.wait_for(f"\n{_URL}\r\n".encode())
        laptop = Shell(recorder, home, _PROMPT.format(colour=32, name="laptop"))
        laptop.wait_for(b"laptop$")
        play(laptop)
    finally:
        if laptop is not None:
            laptop.close()
        dev.close()
    return Cast(COLUMNS, ROWS, recorder.pieces)


def play(laptop: Shell) -> None:
    """Type everything on the machine where the person is."""
    for line in (
        f"execserver box add dev {_URL}",
        "execserver cp -q greet build dev:work",
        "execserver run dev --cwd work -- ./greet",
        "execserver run dev --cwd work -d --name job -- ./build",
        "execserver attach dev job",
        "execserver ps dev",
    ):
        laptop.type(line)
        laptop.wait_for(b"laptop$")
    laptop.type("execserver shell dev")
    laptop.wait_for(b"dev$")
    laptop.type("hostname; exit 7")
    laptop.wait_for(b"laptop$")
    laptop.type("echo $?")
    laptop.wait_for(b"\n7\r\n")
    laptop.wait_for(b"laptop$")


def main(program: list[str]) -> int:
    """Record, and write both files; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        furnished(Path(folder), program)
        cast = record(Path(folder))
    (DOCS / "shell.cast").write_text(cast.dumped())
    (DOCS / "shell.svg").write_text(svg(cast))
    say(f"docs/shell.cast and docs/shell.svg: {cast.pieces[-1].at_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
