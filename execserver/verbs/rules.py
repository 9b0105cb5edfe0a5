"""`execserver rules check`: what the shell tool's exec rules decide about a command, and which rule does.

Reads the files as the shell tool would, decides as the exec supervisor would, and starts nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import NamedTuple

from execserver.arguments import Mistake, Program, missing, read_table
from execserver.leaving import WRONG_USAGE, Leave, failure, until_left
from execserver.mcp.quoting import command_line
from execserver.mcp.rule_calls import shown
from execserver.mcp.rules_files import RulesError, load_files, load_rules, rules_folders
from execserver.rules import policy

HELP = """\
Show what the rules of the shell tool decide about a command, and which rule decides.

Usage: execserver rules check [OPTIONS] [FILE]... -- <COMMAND> [ARGUMENT]...

FILE is a rules file. The default is what the shell tool reads: the files ending with .rules in
/etc/codex/rules and in the folder `rules` of CODEX_HOME [default: ~/.codex], and the rules in
/etc/codex/requirements.toml.
COMMAND is looked up in PATH, as a shell would, unless it has a slash in it. It is not started.

Options:
  --preserve-program-paths  Match rules against the whole path of a program, never its file name.
  --json                    Print the answer for programs.
  -h, --help                Print this text and exit.

Exits with 0 for every decision, with 1 when the rules are broken and with 2 for wrong usage.
"""

_CHECK = "check"
_USAGE = "check [OPTIONS] [FILE]... -- <COMMAND> [ARGUMENT]..."
_FULL_PATH, _JSON = "--preserve-program-paths", "--json"

# Action -> its text for users, its name for programs.
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


class _Answer(NamedTuple):
    command: list[str]
    program: str | None  # None: not found in PATH
    verdict: policy.Verdict
    matching: list[policy.Rule]


def main() -> int:
    """Print the answer; return 0, 1 if the rules are broken, 2 for wrong usage."""
    return until_left(_main)


def _main() -> int:
    question = _question(sys.argv[1:])
    try:
        answer = _answer(question)
    except RulesError as error:
        raise failure(_printable(str(error))) from None
    sys.stdout.write(_printable(_json(answer) if _JSON in question.flags else _text(answer)))
    return 0


def _question(argv: list[str]) -> _Question:
    if not argv:
        raise Leave(WRONG_USAGE, stderr=HELP)
    ours, command = argv, []
    if "--" in argv:
        ours, command = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    program = Program("execserver rules", read_table(HELP), lambda: HELP, takes_more=True, usage=_USAGE)
    parsed = program.parse(ours)
    subcommand, *files = parsed.operands or [""]
    if subcommand != _CHECK:
        wrong = f"unrecognized subcommand '{subcommand}'" if subcommand else "a subcommand is required"
        raise program.mistaken(Mistake(wrong))
    if not command:
        raise program.mistaken(missing(("<COMMAND>",)))
    return _Question(files, frozenset(parsed.options), command)


def _answer(question: _Question) -> _Answer:
    rules = load_files(question.files) if question.files else load_rules(rules_folders(os.environ))
    called, *arguments = question.command
    # Without resolving symlinks: rules name a program by the path under which it is started.
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
    import json  # late: its import takes longer than all others here

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
    """Return a text with escapes for lone surrogates, which no output can encode."""
    return text.encode("utf-8", "backslashreplace").decode()
