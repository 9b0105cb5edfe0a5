"""The command line of the sandbox command, compared with recorded answers of the reference's."""

from __future__ import annotations

import pytest

from helpers.linux_sandbox_arguments import HELP, HelpWanted, Mistake, invalid_profile, parse

TRY = "\n\nFor more information, try '--help'.\n"
CWD = ["--sandbox-policy-cwd", "/ws"]
USAGE = "Usage: codex-linux-sandbox --sandbox-policy-cwd <SANDBOX_POLICY_CWD> [COMMAND]..."
USAGE_WITH_OPTIONS = USAGE.replace("sandbox --", "sandbox [OPTIONS] --")
MISSING = (
    "error: the following required arguments were not provided:\n  --sandbox-policy-cwd <SANDBOX_POLICY_CWD>"
)


def test_everything_is_understood() -> None:
    flags = ["--use-legacy-landlock", "--apply-seccomp-then-exec", "--allow-network-for-proxy", "--no-proc"]
    options = parse(
        [
            *CWD,
            "--command-cwd=/c",
            "--permission-profile",
            "{}",
            "--proxy-route-spec={}",
            *flags,
            "--",
            "a",
            "--",
        ]
    )
    assert (options.policy_cwd, options.command_cwd, options.profile_text) == ("/ws", "/c", "{}")
    assert (options.route_spec, options.command) == ("{}", ["a", "--"])
    assert (options.use_landlock, options.inner, options.proxy, options.no_proc) == (True,) * 4


def test_what_is_left_out() -> None:
    options = parse(CWD)
    assert (options.command, options.command_cwd, options.profile_text) == ([], None, None)
    assert (options.use_landlock, options.inner, options.proxy, options.no_proc) == (False,) * 4


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["echo", "-n", "--help"], ["echo", "-n", "--help"]),
        (["-", "x"], ["-", "x"]),
        (["--", "--no-proc"], ["--no-proc"]),
        (["--"], []),
    ],
)
def test_where_the_command_begins(words: list[str], command: list[str]) -> None:
    assert parse([*CWD, *words]).command == command


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], f"{MISSING}\n\n{USAGE}{TRY}"),
        (["--", "true"], f"{MISSING}\n\n{USAGE.replace('[COMMAND]', '<COMMAND>')}{TRY}"),
        (
            ["--version"],
            "error: unexpected argument '--version' found\n\n  tip: to pass '--version' as a value, use "
            f"'-- --version'\n\n{USAGE_WITH_OPTIONS}{TRY}",
        ),
        (
            [*CWD, "--bogus", "--permission-profile", "{}", "--", "x"],
            "error: unexpected argument '--bogus' found\n\n  tip: to pass '--bogus' as a value, use "
            f"'-- --bogus'\n\n{USAGE}{TRY}",
        ),
        (
            [*CWD, "--permission-profile", "{}", "--permission-profile", "{}"],
            "error: the argument '--permission-profile <PERMISSION_PROFILE>' cannot be used multiple times"
            f"\n\n{USAGE_WITH_OPTIONS}{TRY}",
        ),
        (
            ["--sandbox-policy-cwd"],
            "error: a value is required for '--sandbox-policy-cwd <SANDBOX_POLICY_CWD>' but none was supplied"
            f"{TRY}",
        ),
    ],
)
def test_mistakes(words: list[str], text: str) -> None:
    with pytest.raises(Mistake) as caught:
        parse(words)
    assert str(caught.value) == text


def test_the_text_about_a_profile_that_is_none() -> None:
    assert str(invalid_profile("", "EOF while parsing a value at line 1 column 0")) == (
        "error: invalid value '' for '--permission-profile <PERMISSION_PROFILE>': invalid permission profile "
        f"JSON: EOF while parsing a value at line 1 column 0{TRY}"
    )


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_comes_first(word: str) -> None:
    with pytest.raises(HelpWanted):
        parse([word, "--bogus"])
    for name in ("--sandbox-policy-cwd", "--permission-profile", "--no-proc", "--use-legacy-landlock"):
        assert f"      {name}" in HELP
