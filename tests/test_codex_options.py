"""The options of remote mode: what is told of those that miss or exclude another, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from execserver.cli import parse, remote_config
from execserver.leaving import Leave
from execserver.remote.config import RemoteEnvironmentConfig
from execserver.verbs.codex import NAME

RECORDED = Path(__file__).parent / "transcripts" / "newest" / "50-cli-remote.jsonl"
ELSEWHERE = ("forward", "-1")  # a verb of its own; a usage line that names a command that is not here
REMOTE = ["--remote", "http://127.0.0.1:1", "--environment-id", "e1"]


def recorded() -> list[dict[str, Any]]:
    lines = [json.loads(line)["msg"] for line in RECORDED.read_text().splitlines()]
    return [
        each
        for each in lines
        if "argv" in each
        and not any(word in ELSEWHERE for word in each["argv"])
        and (each["exit"] == 2 or "requires --remote-transport" in each["stderr"])
    ]


@pytest.mark.parametrize("case", recorded(), ids=lambda case: " ".join(case["argv"])[:80])
def test_mistakes_are_told_as_recorded(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in case["env"].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Leave) as left:
        parse(case["argv"], NAME)
    assert (left.value.status, left.value.stderr.strip()) == (case["exit"], case["stderr"])


def test_the_direct_transport_is_refused_with_a_text() -> None:
    with pytest.raises(Leave) as left:
        parse([*REMOTE, "--remote-transport", "direct", "--aws-sigv4", "--aws-region", "r"], NAME)
    assert left.value.status == 1
    assert "is not part of this program" in left.value.stderr


@pytest.mark.parametrize("value", ["true", "false"])
def test_private_addresses_may_go_through_upstream_proxies(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse(["--proxy-private-ips-via-upstream"], NAME).private_ips_via_upstream
    monkeypatch.setenv("CODEX_EXEC_SERVER_PROXY_PRIVATE_IPS_VIA_UPSTREAM", value)
    assert parse([], NAME).private_ips_via_upstream is (value == "true")


@pytest.mark.parametrize(("mode", "inherits"), [("isolate", False), ("inherit", True)])
def test_the_pid_namespace_is_chosen(mode: str, inherits: bool) -> None:
    assert parse(["--linux-sandbox-pid-namespace", mode], NAME).inherit_pid_namespace is inherits


@pytest.mark.parametrize("count", ["1", "32", "65535"])
def test_a_count_of_requests_is_taken(count: str) -> None:
    assert parse(["--concurrent-requests", count], NAME).concurrent_requests == int(count)


@pytest.mark.parametrize(
    ("words", "members"),
    [
        (["--registration-bearer-stdin"], {"stdin_credential": "registration-bearer"}),
        (["--executor-credential-stdin"], {"stdin_credential": "executor-credential"}),
        (
            ["--chatgpt-token-stdin", "--chatgpt-account-id", "a"],
            {"stdin_credential": "chatgpt-token", "chatgpt_account_id": "a"},
        ),
        (["--api-key-host", "relay.test"], {"api_key_host": "relay.test"}),
        (["--remote-transport", "noise"], {}),
    ],
)
def test_options_become_the_configuration(words: list[str], members: dict[str, str]) -> None:
    options = parse([*REMOTE, *words], NAME)
    wanted = RemoteEnvironmentConfig("http://127.0.0.1:1", "e1", config_overrides=[], **members)  # type: ignore[arg-type]
    assert remote_config(options, "http://127.0.0.1:1") == wanted
