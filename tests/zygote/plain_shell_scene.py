"""A script run twice, under supervision and without, with four programs that do what they are told: one that
is allowed outside, one that is asked about, one that is forbidden and one that no rule names.

Without supervision the forbidden one is a program that says and does what a refusal is.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.zygote.confinement import LANDLOCK
from execserver.zygote.supervision.records import ACCEPT, LINGER_S
from tests.support.proc import marked
from tests.support.waiting import wait_until
from tests.zygote.supervised import WRITABLE, Supervised, allow, forbid, prompt

LIMIT_S = 40.0
LATER_S = 10.0  # what a busy machine may be slower for a while
SLOWER = 3  # a loop of programs outside, with a reserve; a program that nobody ends takes half a minute
PROGRAM = """#!/bin/sh
act=$1
[ $# -gt 0 ] && shift
case $act in
say) echo "${0##*/}" "$@" ;;
exit) exit "$1" ;;
kill) kill -"$1" $$; sleep 30 ;;
cat) exec cat "$@" ;;
wait) exec sleep 30 ;;
trap) exec python3 -I -S -c 'import os, signal
wanted = {n for n in (1, 2, 10, 12, 14, 15) if signal.getsignal(n) != signal.SIG_IGN}
signal.pthread_sigmask(0, wanted)
print("ready", flush=True)
signal.sigwait(wanted)
print("trapped", flush=True)
os._exit(7)' ;;
env) printenv "$1" ;;
pwd) pwd ;;
run) exec "$@" ;;
esac
"""
REFUSED = "#!/bin/sh\necho 'Execution denied: Execution forbidden by policy' >&2\nexit 1\n"
NAMES = ("allowed", "asked", "forbidden", "unknown")
RULES = (allow("allowed"), prompt("asked"), forbid("forbidden"))
# Pids and line numbers differ, and so does what a shell calls itself.
NUMBERS = re.compile(r"(?<=: ) *\d+(?= [A-Z])|\b\d{2,7}\b|0x[0-9a-f]+")


class Stage:
    """The programs, and the two ways to run a script with them."""

    def __init__(self, folder: Path, zygote: Supervised, user: int) -> None:
        self.folder = folder
        self.mark = f"EXECSERVER_TEST_MARK={folder.name}"
        self._zygote = zygote
        self._user = user
        for kind in ("plain", "watched"):
            programs = folder / kind
            programs.mkdir(0o777)
            programs.chmod(0o777)
            for name in NAMES:
                path = programs / name
                path.write_text(REFUSED if (kind, name) == ("plain", "forbidden") else PROGRAM)
                path.chmod(0o755)

    def _env(self, kind: str, home: Path) -> dict[str, str]:
        name, _, value = self.mark.partition("=")
        path = f"{self.folder / kind}:{os.environ['PATH']}"
        return {
            "PATH": path,
            "HOME": str(home),
            "SHLVL": "1",
            "LC_ALL": "C",
            "ZDOTDIR": str(home),
            name: value,
        }

    def _home(self, kind: str) -> Path:
        home = self.folder / f"home-{kind}"
        home.mkdir(exist_ok=True)
        home.chmod(0o777)
        return home

    def plain(self, argv: list[str]) -> tuple[int, str, str]:
        """Run it without supervision."""
        home = self._home("plain")
        if self._user != os.getuid():
            ids = ["--reuid", str(self._user), "--regid", str(self._user), "--clear-groups"]
            argv = ["/usr/bin/setpriv", *ids, *argv]
        done = subprocess.run(
            argv,
            env=self._env("plain", home),
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            start_new_session=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def watched(self, argv: list[str], place: str) -> tuple[int, str, str]:
        """Run it under the rules, and see that nothing is left."""
        home = self._home("watched")
        env = [f"{name}={value}".encode() for name, value in self._env("watched", home).items()]
        found = self._zygote.call(
            *("", *RULES),
            argv=[word.encode() for word in argv],
            env=env,
            cwd=home,
            place=place,
            view=None if place == LANDLOCK else WRITABLE,
            answer=lambda question: ACCEPT,
        )
        wait_until(lambda: not marked(self.mark))
        return found

    def compare(self, argv: list[str], place: str, normal: Callable[[str], str] | None = None) -> str:
        """Run it both ways and fail if anything differs, the time included; return the output."""
        begun = time.monotonic()
        plain = self.plain(argv)
        between = time.monotonic()
        watched = self.watched(argv, place)
        plain_s, watched_s = between - begun, time.monotonic() - between
        # Nobody says here that the outputs are over, so what the shell leaves behind may stay for a while.
        assert watched_s < SLOWER * plain_s + LATER_S + LINGER_S
        found, wanted = self._normal(watched, normal), self._normal(plain, normal)
        differences = list(difflib.unified_diff(wanted, found, "plain", "watched", n=1, lineterm=""))
        assert not differences, "\n".join(differences)
        return plain[1]

    def _normal(self, found: tuple[int, str, str], normal: Callable[[str], str] | None) -> list[str]:
        code, *texts = found
        for kind in ("plain", "watched"):
            texts = [text.replace(f"{self.folder}/home-{kind}", "HOME") for text in texts]
            texts = [text.replace(f"{self.folder}/{kind}", "PROGRAMS") for text in texts]
        out, err = (NUMBERS.sub("N", text if normal is None else normal(text)) for text in texts)
        return [f"exit {code}", *out.splitlines(), "stderr:", *err.splitlines()]


def needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} on this machine")


def shells() -> list[str]:
    return ["bash", "dash", "zsh", "busybox"]


def shell_argv(shell: str, text: str) -> list[str]:
    needs(shell)
    found = shutil.which(shell)
    assert found is not None
    options = {"busybox": ["sh"], "zsh": ["-f"], "bash": ["--norc"]}.get(shell, [])
    return [found, *options, "-c", text]


def for_each(text: str, *names: str) -> str:
    return "\n".join(re.sub(r"\bP\b", name, text) for name in names)
