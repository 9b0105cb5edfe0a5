"""`execserver rules check`: what the rules of the shell tool make of a command, and which of them does.

Reads the files as the server would, decides as the supervisor would, and starts nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple

from execserver.arguments import Mistake
from execserver.mcp.quoting import command_line
from execserver.mcp.rule_calls import shown
from execserver.mcp.rules_files import RulesError, load_files, load_rules, rules_folders
from execserver.rules import policy

HELP = """\
Say what the rules of the shell tool make of a command, and which rule does.

Usage: execserver rules check [OPTIONS] [FILE]... -- <COMMAND> [ARGUMENT]...

FILE is a rules file. Without any, what the shell tool reads counts: the files ending with .rules in
/etc/codex/rules and in the folder `rules` of CODEX_HOME [default: ~/.codex], and the rules in
/etc/codex/requirements.toml.
COMMAND is looked up in PATH, as a shell would, unless it has a slash in it. It is not started.

Options:
  --preserve-program-paths  Match rules against the whole path of a program, never its file name.
  --json                    Print the answer for programs.
  -h, --help                Print this text and exit.

Exits with 0 for every decision, with 1 when the rules are broken and with 2 for wrong usage.
"""

_PROGRAM = "execserver rules"
_CHECK = "check"
_USAGE = "check [OPTIONS] [FILE]... -- <COMMAND> [ARGUMENT]..."
_FULL_PATH, _JSON = "--preserve-program-paths", "--json"
_HELP = ("-h", "--help")

# Action -> how it is told, to people and to programs.
_OUTCOMES = {
    policy.RUN: ("runs inside the sandbox", "run"),
    policy.ESCALATE: ("runs outside the sandbox", "escalate"),
    policy.DENY: ("is not run", "deny"),
    policy.ASK_TO_ESCALATE: ("asks, and then runs outside the sandbox", "ask-to-escalate"),
    policy.ASK_TO_RUN: ("asks, and then runs inside the sandbox", "ask-to-run"),
}


class _Question(NamedTuple):
    files: list[str]
    flags: frozenset[str]
    command: list[str]


class _Leave(Exception):
    """The command line decides the outcome: the status, and what to print where."""

    def __init__(self, status: int, *, stdout: str = "", stderr: str = "") -> None:
        super().__init__(stderr)
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


class _Answer(NamedTuple):
    command: list[str]
    program: str | None  # None: PATH leads to none
    verdict: policy.Verdict
    matching: list[policy.Rule]


def main() -> int:
    """Print the answer; return 0, 1 when the rules are broken, 2 for wrong usage."""
    try:
        question = _question(sys.argv[1:])
        answer = _answer(question)
    except _Leave as leave:
        sys.stdout.write(leave.stdout)
        sys.stderr.write(leave.stderr)
        return leave.status
    except RulesError as error:
        sys.stderr.write(_printable(f"Error: {error}\n"))
        return 1
    sys.stdout.write(_printable(_json(answer) if _JSON in question.flags else _text(answer)))
    return 0


def _question(argv: Sequence[str]) -> _Question:
    ours, command = list(argv), None
    if "--" in ours:
        ours, command = ours[: ours.index("--")], ours[ours.index("--") + 1 :]
    if any(word in _HELP for word in ours) or not argv:
        raise _Leave(0 if argv else 2, stdout=HELP if argv else "", stderr="" if argv else HELP)
    if ours[:1] != [_CHECK]:
        raise _mistake(f"unrecognized subcommand '{ours[0]}'" if ours else "a subcommand is required")
    flags = frozenset(word for word in ours[1:] if word.startswith("-"))
    for unknown in sorted(flags - {_FULL_PATH, _JSON}):
        raise _mistake(f"unexpected argument '{unknown}' found")
    if not command:
        raise _mistake("the following required arguments were not provided:\n  <COMMAND>")
    return _Question([word for word in ours[1:] if word not in flags], flags, command)


def _mistake(message: str) -> _Leave:
    return _Leave(2, stderr=Mistake(message, _USAGE).text(_PROGRAM))


def _answer(question: _Question) -> _Answer:
    rules = load_files(question.files) if question.files else load_rules(rules_folders(os.environ))
    called, *arguments = question.command
    program = os.path.abspath(called) if "/" in called else shutil.which(called)
    file, full_path = program or called, _FULL_PATH in question.flags
    return _Answer(
        question.command,
        program,
        rules.decide(file, arguments, full_path),
        rules.matching(file, arguments, full_path),
    )


def _text(answer: _Answer) -> str:
    verdict = answer.verdict
    outcome, _ = _OUTCOMES[verdict.action]
    if verdict.rule is not None:
        why = policy.DECISIONS[verdict.rule.decision]
    else:
        why = "no rule, but it might be dangerous" if verdict.action == policy.ASK_TO_RUN else "no rule"
    lines = [
        f"{command_line(answer.command[0], answer.command[1:])}",
        f"  {outcome} ({why})",
        f"  program: {answer.program or 'none of that name in PATH'}",
    ]
    if answer.matching:
        lines.append("  rules that match:")
    for rule in answer.matching:
        mark = ">" if rule is verdict.rule else " "
        lines.append(f"  {mark} {policy.DECISIONS[rule.decision]:<9} {rule.where}: {shown(rule)}")
        if rule.justification is not None:
            lines.append(f"              {rule.justification}")
    return "\n".join(lines) + "\n"


def _json(answer: _Answer) -> str:
    import json  # late: heavier than all the rest

    verdict = answer.verdict
    told = {
        "command": answer.command,
        "program": answer.program,
        "action": _OUTCOMES[verdict.action][1],
        "decision": policy.DECISIONS[verdict.rule.decision] if verdict.rule else None,
        "rules": [
            {
                "where": rule.where,
                "pattern": rule.pattern,
                "decision": policy.DECISIONS[rule.decision],
                "justification": rule.justification,
                "decides": rule is verdict.rule,
            }
            for rule in answer.matching
        ],
    }
    return json.dumps(told) + "\n"


def _printable(text: str) -> str:
    """Return a text without what is no character, for a terminal of any kind."""
    return text.encode("utf-8", "backslashreplace").decode()
