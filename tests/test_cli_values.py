"""The help text is the grammar: what is read of it, and by it, is what another reader finds there."""

from __future__ import annotations

import re

import pytest
from docopt import docopt
from hypothesis import given
from hypothesis import strategies as st

from execserver.arguments import Parsed, Program, read_table
from execserver.cli import Options, parse
from execserver.cli_help import HELP
from execserver.codex_options import STDIN_CREDENTIALS
from execserver.leaving import Leave
from execserver.verbs.help import GENERAL, TEXTS, text

OPTION_LINE = re.compile(r"^  (?:(-\w), )?(--[\w-]+)(?: (<[^>]+>))?(?:  .*)?$", re.MULTILINE)
REPEATABLE = frozenset({"--config", "--enable", "--disable"})
TABLE = read_table(HELP, REPEATABLE)
GRAMMAR = HELP.replace(
    "[OPTIONS]", "[options] [--config <key=value>]... [--enable <FEATURE>]... [--disable <FEATURE>]..."
)
# Values of these have to be right; those of all others are texts, and nothing is looked up before.
CHOSEN = {
    "--log-level": st.sampled_from(["off", "info", "trace"]),
    "--log-format": st.sampled_from(["text", "json"]),
    "--remote-transport": st.just("noise"),
    "--concurrent-requests": st.sampled_from(["1", "+7", "0020"]),
    "--linux-sandbox-pid-namespace": st.sampled_from(["isolate", "inherit"]),
}
WITH_TEXTS = [
    *("--listen", "--remote", "--environment-id", "--executor-id", "--name", "--chatgpt-account-id"),
    *("--api-key-host", "--config", "--enable", "--disable", "--ws-issuer"),
]
FLAGS = [
    *("--use-agent-identity-auth", "--strict-config", "--exit-on-stdin-close", "--insecure-listen"),
    *("--pass-trace", "--proxy-private-ips-via-upstream", "--upgrade-on-hup"),
    *(f"--{kind}-stdin" for kind in STDIN_CREDENTIALS),
]
TEXT_VALUES = st.one_of(
    st.text(max_size=12), st.sampled_from(["model=x", "a=b=c", "-", "ws://[::1]:0", "=", " "])
)


def worded(name: str, value: str | None) -> st.SearchStrategy[list[str]]:
    """Return how an option can be written."""
    if value is None:
        return st.just([name])
    ways = [[f"{name}={value}"]]
    if value == "-" or not value.startswith("-"):
        ways.append([name, value])
    if name == "--config":
        ways += [[f"-c={value}"], *([[f"-c{value}"]] if value and value[0] != "=" else [])]
    return st.sampled_from(ways)


def options() -> st.SearchStrategy[list[str]]:
    one = st.one_of(
        st.sampled_from(FLAGS).flatmap(lambda name: worded(name, None)),
        st.tuples(st.sampled_from(WITH_TEXTS), TEXT_VALUES).flatmap(lambda pair: worded(*pair)),
        st.sampled_from(sorted(CHOSEN)).flatmap(
            lambda name: CHOSEN[name].flatmap(lambda value: worded(name, value))
        ),
    )
    return st.lists(one, max_size=6).map(lambda found: [word for words in found for word in words])


def by_docopt(words: list[str]) -> Options:
    """Return the options by the help text alone."""
    found = docopt(GRAMMAR, words, False)
    return Options(
        listen=found["--listen"],
        remote=found["--remote"],
        environment_id=found["--environment-id"],
        executor_id=found["--executor-id"],
        name=found["--name"],
        use_agent_identity_auth=bool(found["--use-agent-identity-auth"]),
        config=found["--config"],
        strict_config=bool(found["--strict-config"]),
        log_level=found["--log-level"],
        log_format=found["--log-format"] or "text",
        exit_on_stdin_close=bool(found["--exit-on-stdin-close"]),
        access={"--ws-issuer": found["--ws-issuer"]} if found["--ws-issuer"] is not None else {},
        insecure_listen=bool(found["--insecure-listen"]),
        stdin_credential=next((kind for kind in STDIN_CREDENTIALS if found[f"--{kind}-stdin"]), None),
        chatgpt_account_id=found["--chatgpt-account-id"],
        api_key_host=found["--api-key-host"],
        concurrent_requests=int(found["--concurrent-requests"] or 0),
        inherit_pid_namespace=found["--linux-sandbox-pid-namespace"] == "inherit",
        pass_trace=bool(found["--pass-trace"]),
        private_ips_via_upstream=bool(found["--proxy-private-ips-via-upstream"]),
        upgrade_on_hup=bool(found["--upgrade-on-hup"]),
    )


def read(argv: list[str]) -> Parsed | None:
    try:
        return Program("execserver", TABLE, lambda: HELP).parse(argv)
    except Leave:
        return None


# With and without those that most others need: else few command lines would be right.
@given(
    st.sampled_from([[], ["--remote", "r", "--environment-id=e"], ["--remote=", "--executor-id", "x"]]),
    options(),
)
def test_a_command_line_has_the_values_that_docopt_reads_by_the_help_text(
    beginning: list[str], more: list[str]
) -> None:
    argv = [*beginning, *more]
    try:
        found = parse(argv)
    except Leave:
        return  # a mistake, which docopt would not tell apart
    parsed = read(argv)
    assert parsed is not None
    assert found == by_docopt(parsed.words)


def test_without_arguments_the_defaults_are_those_of_the_help_text() -> None:
    assert parse([]) == by_docopt([])
    assert parse([]).listen == "ws://127.0.0.1:0"


PLACES = [*TEXTS.values(), GENERAL, "execserver.verbs.relay_token:HELP", "execserver.verbs.relay_status:HELP"]


@pytest.mark.parametrize("place", PLACES)
def test_the_table_of_a_help_text_has_what_a_pattern_of_its_lines_finds(place: str) -> None:
    shown = text(place)
    expected = [(name, short or None, value or None) for short, name, value in OPTION_LINE.findall(shown)]
    assert expected
    assert [(each.name, each.short, each.value) for each in read_table(shown).values()] == expected
