"""What a process inherits from the server, as the contract's `envPolicy` says (section 8.1)."""

from __future__ import annotations

import pytest

from execserver.core.env_policy import SERVER_CREDENTIALS, child_environment
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.process import ExecEnvPolicy, ExecEnvPolicyInherit

ALL, CORE, NONE = ExecEnvPolicyInherit.ALL, ExecEnvPolicyInherit.CORE, ExecEnvPolicyInherit.NONE

# The variables of the recorded reference server.
SERVER = {
    b"API_TOKEN": b"t",
    b"CODEX_HOME": b"/c",
    b"Db_Secret": b"x",
    b"FOO": b"bar",
    b"HOME": b"/root",
    b"LANG": b"C.UTF-8",
    b"MY_KEY": b"k",
    b"PATH": b"/usr/bin:/bin",
    b"SHELL": b"/bin/bash",
    b"TERM": b"xterm-foo",
    b"USER": b"root",
}


def policy(
    inherit: ExecEnvPolicyInherit,
    *,
    ignore: bool = True,
    exclude: tuple[str, ...] = (),
    put: dict[str, str] | None = None,
    only: tuple[str, ...] = (),
) -> ExecEnvPolicy:
    return ExecEnvPolicy(
        inherit=inherit,
        ignore_default_excludes=ignore,
        exclude=exclude,
        set=put or {},
        include_only=only,
    )


def names(environment: dict[bytes, bytes]) -> set[str]:
    return {name.decode() for name in environment}


def test_without_a_policy_the_process_gets_exactly_env() -> None:
    assert child_environment(SERVER, None, {"A": "é", "": "empty name"}) == {
        b"A": "é".encode(),
        b"": b"empty name",
    }


def test_all_passes_everything_and_env_lies_over_it() -> None:
    got = child_environment(SERVER, policy(ALL), {"E": "1", "FOO": "over"})
    assert got == {**SERVER, b"E": b"1", b"FOO": b"over"}


def test_default_excludes_drop_keys_secrets_and_tokens_in_any_case() -> None:
    got = child_environment(SERVER, policy(ALL, ignore=False), {"E": "1"})
    assert names(got) == {"CODEX_HOME", "E", "FOO", "HOME", "LANG", "PATH", "SHELL", "TERM", "USER"}


def test_core_passes_the_named_ones_in_any_case() -> None:
    got = child_environment({**SERVER, b"tmp": b"/t", b"LC_NUMERIC": b"C"}, policy(CORE), {"FOO": "over"})
    assert names(got) == {"FOO", "HOME", "LANG", "PATH", "SHELL", "USER", "tmp"}


def test_none_passes_nothing_but_what_is_set() -> None:
    got = child_environment(SERVER, policy(NONE, put={"S": "1", "FOO": "2"}), {})
    assert got == {b"S": b"1", b"FOO": b"2"}


def test_include_only_filters_what_is_set_as_well_but_never_env() -> None:
    rules = policy(ALL, exclude=("fo?", "L*"), put={"S": "1", "SX": "2"}, only=("f*", "us*", "s"))
    assert child_environment(SERVER, rules, {"KEEP": "1"}) == {b"KEEP": b"1", b"S": b"1", b"USER": b"root"}


def test_excludes_come_before_set() -> None:
    rules = policy(
        NONE, ignore=False, exclude=("*",), put={"A_KEY": "1", "*": "star", "FOO": "1"}, only=("f*",)
    )
    assert child_environment(SERVER, rules, {}) == {b"FOO": b"1"}


@pytest.mark.parametrize("name", SERVER_CREDENTIALS)
def test_the_servers_credentials_are_never_inherited(name: bytes) -> None:
    inherited = {**SERVER, name: b"secret"}
    assert name not in child_environment(inherited, policy(ALL), {})
    assert name not in child_environment(inherited, policy(ALL, only=("*",)), {})
    given_by_client = child_environment(inherited, policy(ALL, put={name.decode(): "own"}), {})
    assert given_by_client[name] == b"own"


def test_the_server_environment_is_left_as_it_was() -> None:
    before = {**SERVER, b"CODEX_API_KEY": b"k"}
    inherited = dict(before)
    child_environment(inherited, policy(ALL, ignore=False, exclude=("*",)), {"FOO": "x"})
    assert inherited == before


def test_names_that_are_no_utf8_pass_and_can_be_matched() -> None:
    inherited = {b"A\xff": b"\xfe", b"B": b"1"}
    assert child_environment(inherited, policy(ALL), {}) == inherited
    assert child_environment(inherited, policy(ALL, exclude=("a?",)), {}) == {b"B": b"1"}


def test_patterns_that_would_take_long_are_refused() -> None:
    inherited = {b"V%d" % number: b"" for number in range(100)}
    assert child_environment(inherited, policy(ALL, exclude=("v1*",) * 4000), {}).keys() == (
        inherited.keys() - {name for name in inherited if name.startswith(b"V1")}
    )
    for patterns in (("x",) * 100_000, ("*" + "a" * 1_000_000,)):
        for costly in (policy(ALL, exclude=patterns), policy(ALL, only=patterns)):
            with pytest.raises(InvalidRequest, match="too many or too long patterns"):
                child_environment(inherited, costly, {})


SERVICE = (
    "HOST",
    "PORT",
    "PORT_80",
    "PORT_80_TCP",
    "PORT_80_TCP_PROTO",
    "PORT_80_TCP_PORT",
    "PORT_80_TCP_ADDR",
)


@pytest.mark.parametrize(
    ("patterns", "variables"),
    [
        ([f"MY_VARIABLE_{at:03}*" for at in range(300)], [f"MY_VARIABLE_{at:04}" for at in range(300)]),
        (
            [f"MY_APPLICATION_{at:02}*" for at in range(60)],
            [f"SOME_SERVICE_{at}_{name}" for at in range(200) for name in SERVICE],
        ),
    ],
)
def test_hundreds_of_patterns_and_variables_are_not_refused(
    patterns: list[str], variables: list[str]
) -> None:
    inherited = {name.encode(): b"" for name in variables}
    matching = {name for name in inherited if any(name.startswith(p[:-1].encode()) for p in patterns)}
    got = child_environment({**inherited, b"LAST": b""}, policy(ALL, exclude=tuple(patterns)), {})
    assert got.keys() == {*inherited, b"LAST"} - matching
    kept = child_environment(inherited, policy(ALL, only=(*patterns, "SOME_SERVICE_1_*")), {})
    assert kept.keys() == matching | {name for name in inherited if name.startswith(b"SOME_SERVICE_1_")}
