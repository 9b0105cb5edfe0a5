"""A person at a shell, and boxes of every kind that the verbs can reach."""

from __future__ import annotations

import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import ptyprocess
import pytest

from execserver.dispatch import VERBS
from tests.support.accounts import own_cache
from tests.support.cutting_proxy import CuttingProxy
from tests.support.relay_process import program
from tests.support.server_process import ServerProcess, interrupts_not_ignored
from tests.support.source import ROOT
from tests.support.waiting import wait_until

WAIT_S = 30.0
_QUIET_S = 0.3


class Person:
    """Somebody with an empty home, who types commands."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        self.environ = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "TERM": "xterm",
            "SHELL": "/bin/sh",
            "PYTHONPATH": str(ROOT),
            **own_cache(),
        }

    def run(self, *words: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command line of the program to its end."""
        return subprocess.run(
            [*program(), *words],
            input=stdin,
            env=self.environ | environ,
            cwd=self.home,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command line with pipes."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        with interrupts_not_ignored():
            return subprocess.Popen([*program(), *words], env=self.environ, cwd=self.home, **pipes)

    @contextmanager
    def at_terminal(self, *words: str, rows: int = 24, cols: int = 80, **environ: str) -> Iterator[Screen]:
        """Start a command line on a terminal."""
        screen = Screen([*program(), *words], self.environ | environ, self.home, rows, cols)
        try:
            yield screen
        finally:
            screen.close()


def mistaken(words: Sequence[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """Return what a wrong command line is told; nothing is started for it."""
    monkeypatch.setattr(sys, "argv", ["execserver", *words[1:]])
    module, _, function = VERBS[words[0]].partition(":")
    assert getattr(import_module(module), function)() == 2
    return capfd.readouterr().err


class Screen:
    """A terminal, and what a program has written to it."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], cwd: Path, rows: int, cols: int) -> None:
        with interrupts_not_ignored():
            self._process = ptyprocess.PtyProcess.spawn(
                [*argv], env=env, cwd=str(cwd), dimensions=(rows, cols)
            )
        self.text = b""

    @property
    def pid(self) -> int:
        """The program's."""
        return int(self._process.pid)

    def type(self, keys: bytes) -> None:
        """Type."""
        self._process.write(keys)

    def resize(self, rows: int, cols: int) -> None:
        """Make the window another size."""
        self._process.setwinsize(rows, cols)

    def wait_for(self, text: bytes) -> bytes:
        """Read until a text has come; return all up to its end, and forget that."""
        deadline = time.monotonic() + WAIT_S
        while text not in self.text:
            ready = select.select([self._process.fd], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"waiting for {text!r}: {self.text!r}"
            try:
                self.text += self._process.read(65536)
            except EOFError:
                raise AssertionError(f"it ended after {self.text!r}") from None
        at = self.text.index(text) + len(text)
        found, self.text = self.text[:at], self.text[at:]
        return found

    def available(self) -> bytes:
        """Return what has come and was not returned before, after a moment without more."""
        while select.select([self._process.fd], [], [], _QUIET_S)[0]:
            try:
                self.text += self._process.read(65536)
            except EOFError:
                break
        found, self.text = self.text, b""
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def is_raw(self) -> bool:
        """Tell whether keys go through as they are."""
        import termios

        return not termios.tcgetattr(self._process.fd)[3] & termios.ICANON

    def ended(self) -> int:
        """Read to the end; return the exit status, 128 and a signal's number."""
        try:
            while True:
                self.text += self._process.read(65536)
        except (EOFError, OSError):
            pass
        wait_until(lambda: not self._process.isalive(), WAIT_S)
        status = self._process.exitstatus
        return int(status) if status is not None else 128 + int(self._process.signalstatus)

    def close(self) -> None:
        """End it the hard way, if it has not ended."""
        if self._process.isalive():
            self._process.kill(signal.SIGKILL)
            self._process.wait()
        self._process.close(force=True)


SSHD = "/usr/sbin/sshd"
_SSHD_FOLDER = "/run/sshd"  # root's sshd wants it, which is made by the system's start only
_WITH_FOLDER = (
    'exec unshare -m sh -c \'mount -t tmpfs none /run && mkdir /run/sshd && exec "$0" "$@"\' '
    if os.geteuid() == 0 and not os.path.isdir(_SSHD_FOLDER)
    else "exec "
)


def _may_mount() -> bool:
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/run"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def without_sshd() -> str:
    """Return why there is no real sshd to test with; empty if there is."""
    if os.geteuid() == 0 and not os.path.isdir(_SSHD_FOLDER) and not _may_mount():
        return f"sshd wants {_SSHD_FOLDER}, and nothing can be mounted here"
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return "ssh wants to find this user in passwd"
    if not os.path.exists(SSHD) or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "openssh-server is not installed"
    return ""


def ssh_host(folder: Path) -> str:
    """Return a folder for the front of PATH, whose `ssh` finds a real sshd as the host `box`."""
    folder.mkdir()
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    launcher = folder / "execserver"
    launcher.write_text(f"#!/bin/sh\nPYTHONPATH='{ROOT}' exec '{sys.executable}' -m execserver \"$@\"\n")
    launcher.chmod(0o755)
    (folder / "sshd_config").write_text(
        f'HostKey "{folder}/host"\n'
        "PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n"
        f'AuthorizedKeysFile "{folder}/authorized"\nSetEnv "PATH={folder}:{os.environ["PATH"]}"\n'
    )
    # No port: the client starts the daemon itself, and their pipes are the network.
    daemon = folder / "daemon"
    daemon.write_text(f"#!/bin/sh\n{_WITH_FOLDER}{SSHD} -i -e -f '{folder}/sshd_config' 2>'{folder}/log'\n")
    daemon.chmod(0o755)
    (folder / "ssh_config").write_text(
        f"Host box\nProxyCommand '{daemon}'\nIdentityFile \"{folder}/user\"\nIdentitiesOnly yes\n"
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    )
    found = folder / "bin"
    found.mkdir()
    real = shutil.which("ssh")
    (found / "ssh").write_text(f"#!/bin/sh\nexec '{real}' -F '{folder}/ssh_config' \"$@\"\n")
    (found / "ssh").chmod(0o755)
    return str(found)


@contextmanager
def cut_way(server: ServerProcess) -> Iterator[CuttingProxy]:
    """Yield a way to a server that can be cut."""
    proxy = CuttingProxy(server.url)
    try:
        yield proxy
    finally:
        proxy.stop()
