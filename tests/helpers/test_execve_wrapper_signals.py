"""Signals on their way through the wrapper, and how it ends by one (shell tool contract)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.conftest import LONG
from tests.helpers.wrapper_process import command, compiled, finish
from tests.support.wrapper_peer import Session, WrapperPeer

__all__ = ["command", "compiled"]
pytestmark = pytest.mark.timeout(900 if LONG else 180)  # the first of them compiles a program


def test_signals_end_it_as_they_would_end_the_program(command: list[str]) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        with WrapperPeer() as peer:
            process = peer.start(command, "/bin/x", "x")
            session = peer.accept()
            process.send_signal(signum)
            assert finish(process) == (-signum, b"", "")
            session.close()


def escalated(
    peer: WrapperPeer, command: Sequence[str], **answer: object
) -> tuple[subprocess.Popen[bytes], Session, bytes]:
    """Start a wrapper, and let its program run; return it, its session and what it said."""
    process = peer.start(command, "/bin/x", "x")
    session = peer.accept()
    session.send({"action": "Escalate", **answer})
    text, descriptors = session.receive_text()
    for descriptor in descriptors:
        os.close(descriptor)
    return process, session, text


def test_whoever_takes_signals_gets_each_of_them(command: list[str]) -> None:
    names = (
        "HUP",
        "INT",
        "QUIT",
        "TERM",
        "USR1",
        "USR2",
        "ALRM",
        "TSTP",
        "TTIN",
        "CONT",
        "WINCH",
        "URG",
        "IO",
    )
    with WrapperPeer() as peer:
        process, session, text = escalated(peer, command, signals=True)
        assert text == b'{"fds":[0,1,2],"signals":true}'
        for signum in (*(getattr(signal, f"SIG{name}") for name in names), signal.SIGRTMIN + 3):
            process.send_signal(signum)
            assert json.loads(session.receive_text()[0]) == {"signal": signum}
        session.send({"exit_code": 5})
        session.close()
        assert finish(process) == (5, b"", "")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_it_ends_by_the_signal_that_ended_the_program(command: list[str], signum: int) -> None:
    with WrapperPeer() as peer:
        process, session, _ = escalated(peer, command, signals=True)
        session.send({"exit_code": 128 + signum, "signal": signum})
        session.close()
        assert finish(process) == (-signum, b"", "")


def test_whoever_does_not_take_signals_hears_of_none(command: list[str]) -> None:
    for answer in ({}, {"signals": False}, {"signals": 1}):
        with WrapperPeer() as peer:
            process, session, text = escalated(peer, command, **answer)
            assert text == b'{"fds":[0,1,2]}'
            process.send_signal(signal.SIGHUP)
            assert finish(process)[0] == -signal.SIGHUP
            assert session.stream.recv(10) == b""
            session.close()


def test_what_it_ignores_or_blocks_goes_nowhere(command: list[str]) -> None:
    code = "import os,signal,sys; signal.signal(10,signal.SIG_IGN); signal.pthread_sigmask(0,[12]);"
    starter = [sys.executable, "-I", "-S", "-c", f"{code} os.execv(sys.argv[1], sys.argv[1:])"]
    with WrapperPeer() as peer:
        process, session, _ = escalated(peer, [*starter, *command], signals=True)
        for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            process.send_signal(signum)
        assert session.receive_text()[0] == b'{"signal":1}'
        session.send({"exit_code": 0})
        session.close()
        assert finish(process) == (0, b"", "")


@pytest.mark.parametrize("signum", [0, -1, 65, 19, 1 << 40, "x", None])
def test_a_signal_that_is_none_is_left_out(command: list[str], signum: object) -> None:
    with WrapperPeer() as peer:
        process, session, _ = escalated(peer, command, signals=True)
        session.send({"exit_code": 3, "signal": signum})
        session.close()
        assert finish(process) == (3, b"", "")
