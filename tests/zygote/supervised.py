"""Supervised shells of a zygote, started and followed by hand: rules in, output and questions out."""

from __future__ import annotations

import _socket
import functools
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from execserver.rules.policy import ALLOW, FORBIDDEN, PROMPT, Policy, Rule
from execserver.rules.policy_record import encode_policy
from execserver.sandbox.backends.bwrap import encode as encode_bubblewrap
from execserver.sandbox.plan import FILTER_RESTRICTED, ROOT_READ_ONLY, ROOT_WRITABLE, SandboxPlan
from execserver.sandbox.plan_record import encode_plan
from execserver.zygote.confine import spare
from execserver.zygote.confinement import (
    BUBBLEWRAP,
    FILTER,
    LANDLOCK,
    NATIVE,
    UNCONFINED,
    Confinement,
    filtered,
)
from execserver.zygote.records import (
    Failed,
    SpawnRequest,
    Started,
)
from execserver.zygote.supervision import start as _loaded_before_the_user_changes  # noqa: F401
from execserver.zygote.supervision.records import (
    Answer,
    FrameReader,
    Message,
    Question,
    Supervision,
    encode_message,
    encode_supervision,
)
from tests.support.proc import children_of
from tests.support.roots import plan
from tests.support.waiting import wait_until
from tests.support.ways import WAYS, bubblewrap_for
from tests.zygote.confined_harness import ConfinedZygote
from tests.zygote.harness import PATH

ENV = (PATH, b"SHLVL=1")
READ_ONLY = plan()
WRITABLE = SandboxPlan(ROOT_WRITABLE)
LIMIT_S = 30.0
FULL_ACCESS = "full-access"
PLACES = (NATIVE, BUBBLEWRAP, LANDLOCK, FILTER, FULL_ACCESS)


def allow(*words: str) -> Rule:
    """Return a rule that lets a program run outside."""
    return _rule(ALLOW, words)


def forbid(*words: str) -> Rule:
    """Return a rule that lets a program run nowhere."""
    return _rule(FORBIDDEN, words)


def prompt(*words: str) -> Rule:
    """Return a rule that asks about a program."""
    return _rule(PROMPT, words)


class Shell:
    """A supervised shell that runs: its supervisor, its output so far and the questions that came."""

    def __init__(
        self, zygote: ConfinedZygote, started: Started, fds: tuple[int, int], sock: _socket.socket
    ) -> None:
        self.zygote = zygote
        self.pid = started.pid
        self.id = started.request_id
        self.sock = sock
        self.messages: list[Message] = []
        self._frames = FrameReader()
        self._texts = dict.fromkeys(fds, b"")
        self._out, self._err = fds
        self._poll = select.poll()
        for descriptor in (*fds, sock.fileno()):
            self._poll.register(descriptor, select.POLLIN)
        self._open = {*fds, sock.fileno()}

    @property
    def out(self) -> str:
        """What it wrote to stdout until now."""
        return self._texts[self._out].decode()

    @property
    def err(self) -> str:
        """What it wrote to stderr until now."""
        return self._texts[self._err].decode()

    @property
    def questions(self) -> list[Question]:
        """What was asked until now."""
        return [message for message in self.messages if isinstance(message, Question)]

    def answer(self, number: int, action: int) -> None:
        """Answer a question."""
        self.sock.sendall(encode_message(Answer(number, action)))

    def follow(
        self,
        until: Callable[[], bool],
        answer: Callable[[Question], int] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Take what comes until something is so; questions are answered at once if `answer` is given."""
        deadline = time.monotonic() + limit_s
        while not until():
            left = deadline - time.monotonic()
            assert left > 0, (self.out, self.err, self.messages)
            for descriptor, _ in self._poll.poll(min(left, 0.05) * 1000):
                self._take(descriptor, answer)

    def end(self, answer: Callable[[Question], int] | None = None) -> int:
        """Follow the shell to its end; return its exit code, or minus the signal that killed it."""
        self.follow(lambda: not self._open, answer)
        return os.waitstatus_to_exitcode(self.zygote.exit_of(self.id).status)

    def _take(self, descriptor: int, answer: Callable[[Question], int] | None) -> None:
        if descriptor != self.sock.fileno():
            data = os.read(descriptor, 1 << 16)
            self._texts[descriptor] += data
        else:
            data = self._received()
            for message in self._frames.feed(data):
                self.messages.append(message)
                if answer is not None and isinstance(message, Question):
                    self.answer(message.number, answer(message))
        if not data:
            self._open.discard(descriptor)
            self._poll.unregister(descriptor)

    def _received(self) -> bytes:
        try:
            return self.sock.recv(1 << 16)
        except ConnectionResetError:
            return b""  # the supervisor has ended with an answer unread: whoever asked was killed


class Supervised(ConfinedZygote):
    """A zygote that starts supervised shells."""

    def __enter__(self) -> Supervised:
        return self

    @contextmanager
    def shell(
        self,
        script: str,
        *rules: Rule,
        place: str = NATIVE,
        view: SandboxPlan | None = None,
        argv: Sequence[bytes] | None = None,
        env: Sequence[bytes] = ENV,
        cwd: Path | str = "/",
        supervision: Supervision | None = None,
    ) -> Iterator[Shell]:
        """Start a shell under rules; whatever it left is ended with the zygote."""
        if supervision is None:
            supervision = Supervision(encode_policy(Policy(rules)), server_env=[PATH])
        self._next_id += 1
        confinement = _confinement(
            place, view
        )  # skips where there is no bubblewrap, and must find nothing open then
        out, err, questions = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC), _socket.socketpair()
        request = SpawnRequest(
            self._next_id,
            argv or [b"/bin/bash", b"-c", script.encode()],
            env,
            os.fsencode(cwd),
            confinement=confinement,
            supervision=encode_supervision(supervision),
        )
        try:
            try:
                self.send(request, (out[1], err[1], questions[1].fileno()))
            finally:
                os.close(out[1])
                os.close(err[1])
                questions[1].close()
            started = self.answer(request.request_id)
            if isinstance(started, Failed):
                raise NotStarted(os.fsdecode(b" ".join(started.details)))
            assert isinstance(started, Started)
            yield Shell(self, started, (out[0], err[0]), questions[0])
        finally:
            os.close(out[0])
            os.close(err[0])
            questions[0].close()

    def call(
        self, script: str, *rules: Rule, answer: Callable[[Question], int] | None = None, **options: object
    ) -> tuple[int, str, str]:
        """Run a shell to its end; return its exit code (or minus the signal), output and errors."""
        with self.shell(script, *rules, **options) as shell:  # type: ignore[arg-type]
            return shell.end(answer), shell.out, shell.err


class NotStarted(Exception):
    """The zygote refused; the text says why."""


def _rule(decision: int, words: Sequence[str]) -> Rule:
    return Rule(tuple((word,) for word in words), decision, "rules:1")


def _confinement(place: str, view: SandboxPlan | None) -> Confinement:
    if place == FULL_ACCESS:
        return UNCONFINED
    if place == FILTER:
        return filtered(FILTER_RESTRICTED)
    record = encode_plan(view or (READ_ONLY if place == NATIVE else SandboxPlan(ROOT_READ_ONLY)))
    return Confinement(place, record, _bubblewrap() if place == BUBBLEWRAP else b"")


@functools.cache
def _bubblewrap() -> bytes:
    return encode_bubblewrap(bubblewrap_for(next(way for way in WAYS if way.name == "bubblewrap-user")))


def name_of(pid: int) -> bytes:
    """Return the name of a process; nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")
    except OSError:
        return b""


def spares(parent: int) -> list[int]:
    """Return the spares that a process has."""
    return [pid for pid in children_of(parent) if name_of(pid) == spare.NAME]


def spare_of(zygote: Supervised) -> int:
    """Return the pid of the waiting supervisor, when there is one."""
    return wait_until(lambda: next(iter(spares(zygote.pid)), 0))
