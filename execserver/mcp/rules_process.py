"""Evaluates rules files in a child process, with limits on its time and memory.

The language's evaluator has no limits: nested loops may take years, a text may be doubled until the memory is
full, and an expression that nests too deep overflows the stack.  None of that may end the server.  The child
is a fork that keeps only a pipe; it answers file by file and stops at the first error.  It also keeps the
evaluator out of the server's memory.
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import select
import signal
import time
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple, NoReturn

from execserver.rules.policy import HostExecutable, Policy, Rule
from execserver.rules.policy_record import PolicyRecordError, decode_policy, encode_policy

TIME_LIMIT_S = 10  # for all files together; thousands of rules take a tenth of a second
MEMORY_LIMIT_BYTES = 512 << 20  # of address space, in addition to what the process has already

# What the child sends: a mark for each finished file, then one of the other marks with its content.
_DONE, _DECLARED, _BROKEN = b".", b"+", b"-"
_READ_BYTES = 64 * 1024
_MAX_ERROR_BYTES = 1 << 20  # a trace repeats source lines, which may be long


class Source(NamedTuple):
    """A rules file as it was read."""

    path: str
    text: str


class EvaluationError(Exception):
    """A file is wrong, or its evaluation was abandoned: `path` is the file, the text says why."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path


def evaluate_all(sources: Sequence[Source], limit_s: float = TIME_LIMIT_S) -> Policy:
    """Return what all files declare, in their order.  Raises EvaluationError for the first wrong file.

    Blocks this thread for at most `limit_s` seconds.
    """
    receiver, sender = os.pipe2(os.O_CLOEXEC)
    with open(receiver, "rb", buffering=0):
        child = os.fork()
        if child == 0:
            _be_child(sources, sender)
        os.close(sender)
        try:
            data, in_time = _read_all(receiver, time.monotonic() + limit_s)
        finally:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
    finished = len(data) - len(data.lstrip(_DONE))
    kind, content = data[finished : finished + 1], data[finished + 1 :]
    current = sources[min(finished, len(sources) - 1)].path
    if not in_time:
        raise EvaluationError(current, f"its evaluation takes longer than {limit_s:g} s")
    if kind == _BROKEN:
        raise EvaluationError(current, content.decode("utf-8", "replace"))
    try:
        return decode_policy(content if kind == _DECLARED else b"")
    except PolicyRecordError:
        raise EvaluationError(current, _crash(status)) from None


def _crash(status: int) -> str:
    how = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "crashed"
    limit = MEMORY_LIMIT_BYTES >> 20
    return f"its evaluation {how}: it nests too deep, or needs more than {limit} MiB of memory"


def _read_all(receiver: int, deadline: float) -> tuple[bytes, bool]:
    """Return what came until the end of the pipe, and whether the end came before the deadline."""
    poll = select.poll()
    poll.register(receiver, select.POLLIN)
    parts: list[bytes] = []
    while poll.poll(max(0, deadline - time.monotonic()) * 1000):
        part = os.read(receiver, _READ_BYTES)
        if not part:
            return b"".join(parts), True
        parts.append(part)
    return b"".join(parts), False


def _be_child(sources: Sequence[Source], sender: int) -> NoReturn:
    """Evaluate, answer and exit.  No code of the parent runs again, whatever happens."""
    # A collection would run finalizers of the parent's objects; some wait for threads, which a fork lacks.
    gc.disable()
    try:
        kept = fcntl.fcntl(sender, fcntl.F_DUPFD_CLOEXEC, 3)  # `sender` may have the number of a closed stdin
        _let_go(kept)
        with open(kept, "wb") as answers:
            _answer(sources, answers)
    finally:
        os._exit(0)


def _let_go(kept: int) -> None:
    """Close all descriptors but one, set the limits of this process, and let signals end it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor != kept:
            os.closerange(descriptor, descriptor + 1)  # unlike `close`, no error for the listing's own one
    with open("/proc/self/statm", "rb") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_AS, size + MEMORY_LIMIT_BYTES),
        (resource.RLIMIT_CPU, TIME_LIMIT_S),  # in case the parent dies before it can kill this process
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard < 0 else min(value, hard), hard))


def _answer(sources: Sequence[Source], answers: BinaryIO) -> None:
    try:
        # Imported in the child only, and only if there are rules.
        from execserver.mcp.rules_language import RulesFileError, evaluate
    except ImportError as error:
        answers.write(_BROKEN + str(error).encode("utf-8", "replace"))
        return
    rules: list[Rule] = []
    executables: list[HostExecutable] = []
    try:
        for source in sources:
            found = evaluate(os.fsencode(source.path).decode("utf-8", "replace"), source.text)
            rules += found[0]
            executables += found[1]
            answers.write(_DONE)
            answers.flush()
        answers.write(_DECLARED + encode_policy(Policy(rules, executables)))
    except (RulesFileError, PolicyRecordError) as error:
        answers.write(_BROKEN + str(error).encode("utf-8", "replace")[:_MAX_ERROR_BYTES])
