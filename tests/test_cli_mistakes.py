"""Mistakes on the command line: each is named in the contract's words, and exits with 2."""

from __future__ import annotations

import re

import pytest

from execserver.cli import parse
from execserver.leaving import Leave

HINT = "\nFor more information, try '--help'.\n"
USAGE = "\nUsage: execserver [OPTIONS]\n"
URL_LINE = re.compile(rb"ws://127\.0\.0\.1:[1-9]\d*\n")


USAGE = "\nUsage: execserver [OPTIONS]\n"
URL_LINE = re.compile(rb"ws://127\.0\.0\.1:[1-9]\d*\n")


def usage(options: str) -> str:
    return f"\nUsage: execserver {options}\n"


MISTAKES = [
    (["--listen"], "a value is required for '--listen <URL>' but none was supplied\n"),
    (["--listen", "--name", "x"], "a value is required for '--listen <URL>' but none was supplied\n"),
    (["--listen", "-h"], "a value is required for '--listen <URL>' but none was supplied\n"),
    (["--listen", "--"], "a value is required for '--listen <URL>' but none was supplied\n"),
    (["-c"], "a value is required for '--config <key=value>' but none was supplied\n"),
    (["--bogus"], f"unexpected argument '--bogus' found\n{USAGE}"),
    (["--bogus=3"], f"unexpected argument '--bogus' found\n{USAGE}"),
    (["--bogus", "--help"], f"unexpected argument '--bogus' found\n{USAGE}"),
    (["extra"], f"unexpected argument 'extra' found\n{USAGE}"),
    (["--listen", "stdio", "extra"], f"unexpected argument 'extra' found\n{USAGE}"),
    (["--", "extra"], f"unexpected argument 'extra' found\n{USAGE}"),
    (["-"], f"unexpected argument '-' found\n{USAGE}"),
    (["-x"], f"unexpected argument '-x' found\n{USAGE}"),
    (["--listen", "-x"], f"unexpected argument '-x' found\n{USAGE}"),
    (["--listen", "--bogus"], f"unexpected argument '--bogus' found\n{USAGE}"),
    (["--name", "n", "--bogus"], f"unexpected argument '--bogus' found\n{usage('--name <NAME>')}"),
    (["-ch", "--bogus"], f"unexpected argument '--bogus' found\n{usage('--config <key=value>')}"),
    (
        ["--lis", "x"],
        "unexpected argument '--lis' found\n\n  tip: a similar argument exists: '--listen'\n"
        + usage("--listen <URL>"),
    ),
    (
        ["--environment", "x"],
        "unexpected argument '--environment' found\n\n  tip: a similar argument exists: '--environment-id'\n"
        + usage("--environment-id <ID>"),
    ),
    (
        ["--strict-config=1"],
        "unexpected value '1' for '--strict-config' found; no more were expected\n"
        + usage("--strict-config"),
    ),
    (
        ["--listen", "a", "--listen", "b"],
        f"the argument '--listen <URL>' cannot be used multiple times\n{USAGE}",
    ),
    (
        ["--strict-config", "--strict-config"],
        f"the argument '--strict-config' cannot be used multiple times\n{USAGE}",
    ),
    (
        ["--remote", "http://x"],
        "the following required arguments were not provided:\n  --environment-id <ID>\n"
        + usage("--environment-id <ID> --remote <URL>"),
    ),
    (
        ["--use-agent-identity-auth"],
        "the following required arguments were not provided:\n  --environment-id <ID>\n  --remote <URL>\n"
        + usage("--environment-id <ID> --remote <URL> --use-agent-identity-auth"),
    ),
    (
        ["--use-agent-identity-auth", "--remote", "x"],
        "the following required arguments were not provided:\n  --environment-id <ID>\n"
        + usage("--environment-id <ID> --remote <URL> --use-agent-identity-auth"),
    ),
    (
        ["--listen", "stdio", "--use-agent-identity-auth"],
        "the following required arguments were not provided:\n  --environment-id <ID>\n  --remote <URL>\n"
        + usage("--environment-id <ID> --remote <URL> --listen <URL> --use-agent-identity-auth"),
    ),
    (
        ["--listen", "stdio", "--remote", "http://x", "--environment-id", "e"],
        "the argument '--listen <URL>' cannot be used with '--remote <URL>'\n"
        + usage("--listen <URL> --environment-id <ID>"),
    ),
    (
        ["--listen", "stdio", "--remote", "http://x"],
        "the argument '--listen <URL>' cannot be used with '--remote <URL>'\n" + usage("--listen <URL>"),
    ),
    (
        ["--executor-id", "x"],
        "the following required arguments were not provided:\n  --remote <URL>\n"
        + usage("--remote <URL> --executor-id <ID>"),
    ),
    (
        ["--executor-id", "x", "--environment-id", "e", "--remote", "r"],
        "the argument '--executor-id <ID>' cannot be used with '--environment-id <ID>'\n"
        + usage("--remote <URL> --executor-id <ID>"),
    ),
    (
        ["--executor-id", "x", "--use-agent-identity-auth", "--remote", "r"],
        "the argument '--executor-id <ID>' cannot be used with '--use-agent-identity-auth'\n"
        + usage("--remote <URL> --executor-id <ID>"),
    ),
    (
        ["--log-level", "loud"],
        "invalid value 'loud' for '--log-level <LEVEL>'\n"
        "  [possible values: off, error, warn, info, debug, trace]\n",
    ),
]


@pytest.mark.parametrize(("argv", "text"), MISTAKES, ids=lambda value: " ".join(value)[:40])
def test_a_mistake_is_named_and_exits_with_2(argv: list[str], text: str) -> None:
    with pytest.raises(Leave) as left:
        parse(argv)
    assert (left.value.status, left.value.stdout) == (2, "")
    assert left.value.stderr == f"error: {text}{HINT}"
