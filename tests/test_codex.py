"""The program called `codex`, and the verb `exec-server`: what other people's scripts start and ask."""

from __future__ import annotations

import sys

import pytest

from execserver import cli, cli_help
from execserver.leaving import Leave
from execserver.verbs import codex, forward
from execserver.version import CONTRACT_VERSION, __version__


def outcome(
    patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Be `codex` with these words until it has ended."""
    patch.setattr(sys, "argv", ["codex", *words])
    status = codex.main()
    return status, *capfd.readouterr()


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_the_contracts_with_ours_beside_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    shown = f"codex-cli {CONTRACT_VERSION} (execserver {__version__})\n"
    assert outcome(monkeypatch, capfd, option) == (0, shown, "")


def test_another_version_is_told_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXECSERVER_CONTRACT_VERSION", "0.170.1")
    assert outcome(monkeypatch, capfd, "-V") == (0, f"codex-cli 0.170.1 (execserver {__version__})\n", "")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_says_which_program_this_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    status, out, err = outcome(monkeypatch, capfd, *words)
    assert (status, err) == (0, "")
    assert "execserver" in out
    assert "exec-server" in out


@pytest.mark.parametrize(
    "words",
    [
        ["exec-server", "--help"],
        ["exec-server", "help"],
        ["-c", "a=b", "exec-server", "-h"],
        ["--strict-config", "exec-server", "help"],
    ],
)
def test_the_help_of_the_verb_is_the_servers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert outcome(monkeypatch, capfd, *words) == (0, cli_help.HELP, "")
    assert "--environment-id" in cli_help.HELP


@pytest.mark.parametrize(
    "words", [[], ["exec", "true"], ["mcp"], ["doctor"], ["--nonsense"], ["-c", "exec-server"]]
)
def test_any_other_command_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    status, out, err = outcome(monkeypatch, capfd, *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"error: `codex {words[0]}` is not here" if words else "error: `codex` without")
    assert "install the Codex CLI" in err


@pytest.mark.parametrize("words", [("forward", "--help"), ("help", "forward")])
def test_forward_has_a_help_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    assert outcome(monkeypatch, capfd, "exec-server", *words) == (0, forward.HELP, "")


def test_options_before_the_verb_count_for_forward(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, _, err = outcome(monkeypatch, capfd, "-c", "a=b", "exec-server", "forward", "--connect", "ws://h")
    assert status == 2
    assert "Usage: codex exec-server forward --remote <URL> --environment-id <ID> --connect <URL>" in err


def test_mistakes_name_the_command_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, _, err = outcome(monkeypatch, capfd, "exec-server", "--nonsense")
    assert status == 2
    assert "\nUsage: codex exec-server [OPTIONS]\n" in err


@pytest.mark.parametrize(
    ("given", "words", "found"),
    [
        (None, [], False),
        ("false", [], False),
        ("true", [], True),
        ("true", ["--exit-on-stdin-close"], True),
        (None, ["--exit-on-stdin-close"], True),
    ],
)
def test_ending_with_stdin_is_asked_for_by_option_or_variable(
    monkeypatch: pytest.MonkeyPatch, given: str | None, words: list[str], found: bool
) -> None:
    monkeypatch.delenv(cli.EXIT_ON_STDIN_CLOSE_VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(cli.EXIT_ON_STDIN_CLOSE_VARIABLE, given)
    options = cli.parse(["--remote", "http://r", "--environment-id", "e", *words])
    assert options.exit_on_stdin_close is found


def test_ending_with_stdin_is_for_remote_mode_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cli.EXIT_ON_STDIN_CLOSE_VARIABLE, "true")
    with pytest.raises(Leave) as caught:
        cli.parse([])
    assert caught.value.status == 2
    assert "--environment-id <ID>\n  --remote <URL>\n" in caught.value.stderr


def test_a_variable_with_another_value_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cli.EXIT_ON_STDIN_CLOSE_VARIABLE, "yes")
    with pytest.raises(Leave) as caught:
        cli.parse([])
    assert caught.value.status == 2
    assert caught.value.stderr.startswith("error: invalid value 'yes' for '--exit-on-stdin-close'\n")
    with pytest.raises(Leave) as helped:
        cli.parse(["--help"])
    assert (helped.value.status, helped.value.stdout) == (0, cli_help.HELP)
