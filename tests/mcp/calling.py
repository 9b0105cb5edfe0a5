"""Shell calls for tests: the real zygote, supervisor and sandbox, without the server around them."""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import gevent
from gevent.event import Event

from execserver.egress.rules_file import NetworkRules
from execserver.mcp.call import ShellCalls, ShellOptions
from execserver.mcp.elicitation import Answer, Ask, HostQuestion, Question
from execserver.mcp.sandbox_state import SandboxState, read_state
from execserver.mcp.tool import ExecParams, ExecResult, ToolError
from execserver.rules.policy import ALLOW, FORBIDDEN, PROMPT, Policy, Rule
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.services.confinement.sandbox import Choose, SandboxService, always_native
from execserver.services.egress.service import EgressService
from execserver.services.launch.spawner import Spawner
from execserver.settings import Settings
from execserver.zygote.launch import start_zygote
from execserver.zygote.supervision.records import NOTIFY
from tests.support.proc import command_line, marked
from tests.support.waiting import wait_until

_PR_SET_CHILD_SUBREAPER = 36
BASH = b"/bin/bash"


def allow(*words: str) -> Rule:
    """Return a rule that lets a program run outside."""
    return Rule(tuple((word,) for word in words), ALLOW, "rules:1")


def prompt(*words: str) -> Rule:
    """Return a rule that asks first."""
    return Rule(tuple((word,) for word in words), PROMPT, "rules:2")


def forbid(*words: str) -> Rule:
    """Return a rule that forbids a program."""
    return Rule(tuple((word,) for word in words), FORBIDDEN, "rules:3")


class Person:
    """Answers what is asked, from the program's arguments; notes what was asked."""

    def __init__(self, answer: Answer | Callable[[Question], Answer] = Answer.ACCEPT) -> None:
        self.asked: list[Question] = []
        self._answer = answer

    def ask(self, question: Question | HostQuestion) -> Answer:
        assert isinstance(question, Question)
        self.asked.append(question)
        return self._answer if isinstance(self._answer, Answer) else self._answer(question)


def nobody(question: Question | HostQuestion) -> Answer:
    """Be asked, which must not happen."""
    raise AssertionError(f"asked about {question}")


class Calls:
    """Runs calls in one folder; `choose` chooses their back end.

    `mark` is in the environment of everything they start.
    """

    def __init__(self, spawner: Spawner, folder: Path) -> None:
        self.spawner = spawner
        self.folder = folder
        self.choose: Choose = always_native
        self.mark = f"EXECSERVER_TEST_MARK={uuid.uuid4().hex}"

    def run(
        self,
        command: str,
        *rules: Rule,
        policy: Mapping[str, object] | None = None,
        ask: Ask = nobody,
        env: Mapping[str, str] | None = None,
        timeout_ms: int | None = 30_000,
        cancelled: Event | None = None,
        full_path: bool = False,
        network_rules: NetworkRules | None = None,
    ) -> ExecResult:
        """Run a command under rules and, unless another policy is given, in a read-only sandbox."""
        name, _, value = self.mark.partition("=")
        inherited = {**os.environb, name.encode(): value.encode()}
        inherited.update({os.fsencode(key): os.fsencode(text) for key, text in (env or {}).items()})
        sandbox = SandboxService(Settings(), inherited, self.choose)
        options = ShellOptions(BASH, inherited, full_path, network_rules=network_rules)
        egress = None if network_rules is None else EgressService(Settings(), inherited, None)
        calls = ShellCalls(self.spawner, sandbox, Policy(rules), options, lambda: NOTIFY, egress)
        params = ExecParams(command, str(self.folder), timeout_ms, login=False)
        try:
            return calls.run(params, self.state(policy or {"type": "read-only"}), ask, cancelled or Event())
        finally:
            sandbox.close()

    def error(self, command: str, *rules: Rule, timeout_ms: int | None = 30_000) -> ToolError:
        """Run a command that ends with an error, and return that."""
        try:
            result = self.run(command, *rules, timeout_ms=timeout_ms)
        except ToolError as error:
            return error
        raise AssertionError(f"no error, but {result}")

    def state(self, policy: Mapping[str, object]) -> SandboxState:
        """Return the state of a policy whose workspace is the folder."""
        return read_state({"sandboxPolicy": dict(policy), "sandboxCwd": str(self.folder)})

    @property
    def supervisors(self) -> list[int]:
        """The pids of the supervisors that live."""
        return [child.pid for child in self.spawner.live]

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until something holds, and let the calls go on meanwhile."""
        wait_until(condition, pause=gevent.sleep)

    def left(self) -> list[int]:
        """Return the processes of this object's calls that still live."""
        return marked(self.mark)

    def commands(self) -> list[str]:
        """Return the command lines of the processes of this object's calls that live."""
        return [command_line(pid).replace(b"\0", b" ").decode().strip() for pid in self.left()]

    def wait_until_nothing_is_left(self) -> None:
        """Fail if processes of the calls go on living."""
        self.wait_for(lambda: not self.left() and not self.supervisors)


@contextmanager
def starter() -> Iterator[Spawner]:
    """Run a Spawner with a zygote; everything is ended afterwards."""
    command = ExecServerRuntimePaths.detect().zygote_command()
    made = Spawner(command, start_zygote(command, 1024), 1024, Settings())
    made._patience_s = 30.0  # else a busy machine has the zygote replaced, and more is there than before
    try:
        yield made
    finally:
        made.shutdown(0.0)
        # Else orphans of later tests would become children of this process.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
