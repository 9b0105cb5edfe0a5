"""Credential masking of a real server: what processes see, what their provider gets, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.masking_server import (
    CURL,
    KEY,
    LEAKS,
    TOKEN,
    VENDOR,
    Provider,
    members,
    sandboxed,
)
from tests.support.peer import Json, RemoteError
from tests.support.running import PATH, outcome, run, start, write
from tests.support.server_process import ServerProcess
from tests.support.upgrades import upgraded
from tests.support.ws_peer import WsPeer

pytestmark = pytest.mark.ours_only("0.142.0 masks nothing")

WAYS = (
    ["/bin/bash", "-c", "env"],
    ["/bin/sh", "-c", "env"],
    ["/bin/bash", "-lc", "env"],
    ["env"],
    # Grandchildren, also those that were given a copy of the environment.
    ["/bin/sh", "-c", 'COPY=$GITHUB_TOKEN setsid sh -c \'python3 -c "import os; os.system(\\"env\\")"\''],
)


@pytest.mark.parametrize("argv", WAYS)
@pytest.mark.parametrize("is_sandboxed", [False, True])
def test_every_program_sees_stand_ins(
    peer: WsPeer, provider: Provider, argv: list[str], is_sandboxed: bool
) -> None:
    more = sandboxed() if is_sandboxed else {}
    found = run(peer, "p", argv, **members(provider, **more))
    assert found.exit_code == 0, found
    assert not any(secret.encode() in found.stdout for secret in (KEY, TOKEN, VENDOR))
    env = dict(line.split("=", 1) for line in found.stdout.decode().splitlines() if "=" in line)
    assert env["OPENAI_API_KEY"].startswith("sk-proj-masked")
    assert len(env["OPENAI_API_KEY"]) == len(KEY)
    assert env["GITHUB_TOKEN"].startswith("ghp_masked")
    assert env.get("COPY", env["GITHUB_TOKEN"]) == env["GITHUB_TOKEN"]
    assert env["CODEX_NETWORK_PROXY_CREDENTIAL_BROKER_ACTIVE"] == "1"
    assert ["VENDOR_KEY", env["VENDOR_KEY"]] in json.loads(env["CODEX_NETWORK_PROXY_BROKERED_CREDENTIALS"])
    assert "EXECSERVER_UNMASKED_CREDENTIALS" not in env


@pytest.mark.parametrize("is_sandboxed", [False, True])
def test_the_provider_gets_the_real_value(peer: WsPeer, provider: Provider, is_sandboxed: bool) -> None:
    more = sandboxed() if is_sandboxed else {}
    found = run(peer, "p", CURL, **members(provider, **more))
    assert found.stdout == b"Authorization: Bearer " + VENDOR.encode(), found
    elsewhere = members(provider, **more)
    elsewhere["env"] |= {"URL": provider.url.replace("/v1/", "/v2/")}
    found = run(peer, "q", CURL, **elsewhere)
    assert found.stdout.startswith(b"Authorization: Bearer vendor_")
    assert VENDOR.encode() not in found.stdout


def test_nothing_in_a_sandbox_tells_the_real_values(peer: WsPeer, provider: Provider) -> None:
    found = run(peer, "p", ["/bin/sh", "-c", LEAKS, KEY, TOKEN], **members(provider, **sandboxed()))
    assert found.stdout == b"0\n", found


def test_a_snapshot_of_start_up_files_is_masked_as_well(
    peer: WsPeer, provider: Provider, tmp_path: Path
) -> None:
    own = "vendor_zyxwvutsrqponmlkjihgfedc"
    (tmp_path / ".bash_profile").write_text(
        f'export AUTH="Bearer $GITHUB_TOKEN" VENDOR_KEY={own}\nf() {{ echo {own}; }}\n'
    )
    given = members(provider, shellSnapshot={"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}})
    given["env"] |= {"HOME": str(tmp_path)}
    found = run(peer, "p", ["/bin/bash", "-lc", "env; f; " + CURL], **given)
    *shown, sent = found.stdout.splitlines()
    assert not any(secret.encode() in b"\n".join(shown) for secret in (own, TOKEN))
    assert any(line.startswith(b"AUTH=Bearer ghp_masked") for line in shown)
    assert sent == b"Authorization: Bearer " + own.encode()


def test_a_name_in_place_of_the_programs_is_masked_as_well(peer: WsPeer, provider: Provider) -> None:
    show = ["/bin/sh", "-c", 'echo "$(tr "\\0" " " </proc/$$/cmdline)"']
    found = run(peer, "p", show, **members(provider, arg0=VENDOR))
    assert found.stdout.startswith(b"vendor_"), found
    assert VENDOR.encode() not in found.stdout


def test_a_process_goes_on_with_its_stand_in_after_an_upgrade(
    server: ServerProcess, peer: WsPeer, provider: Provider
) -> None:
    before = run(peer, "b", "echo $VENDOR_KEY", **members(provider)).stdout
    start(peer, "p", f"read go; {CURL}", **members(provider, pipeStdin=True))
    upgraded(server)
    assert write(peer, "p", b"go\n", "w") == "accepted"
    assert outcome(peer, "p").stdout.endswith(b"Authorization: Bearer " + VENDOR.encode())
    assert run(peer, "a", "echo $VENDOR_KEY", **members(provider)).stdout == before


def test_what_is_not_masked_is_said(server: ServerProcess, peer: WsPeer, provider: Provider) -> None:
    given = members(provider)
    given["env"] |= {"VENDOR_KEY": "another shape", "GH_ENTERPRISE_TOKEN": TOKEN}
    given["networkProxy"]["proxy"]["credentialProviders"]["bad"] = {"env": ["A"], "patterns": ["["]}
    found = run(peer, "p", "echo $EXECSERVER_UNMASKED_CREDENTIALS", **given)
    assert json.loads(found.stdout) == [
        ["GH_ENTERPRISE_TOKEN", "GH_HOST names no destination"],
        ["VENDOR_KEY", "its value matches no pattern of the provider"],
        ["bad", "it has no destinations"],
    ]
    assert "the credential VENDOR_KEY is not masked: its value matches no pattern" in server.errors()


@pytest.mark.parametrize(
    ("configured", "error"),
    [
        ({str(number): {} for number in range(65)}, "more than 64 credential providers"),
        ({"a": {"env": ["A"] * 129}}, "credential providers with more than 128 variables in all"),
        ({"a": {"patterns": ["a"] * 129}}, "credential providers with more than 128 patterns in all"),
        ({"a": {"url_prefixes": ["a.b"] * 129}}, "more than 128 prefixes in all"),
        ({"a": {"patterns": ["a" * 65536]}}, "credential providers with more than 65536 characters in all"),
        ({"a": [["A"], ["a"], ["a.example"], None, [], None, None, None]}, "invalid length 8"),
        ({"a": [["A"], ["a"], ["a.example"], 5]}, "expected a string"),
    ],
)
def test_what_a_client_may_configure_is_bounded(
    peer: WsPeer, provider: Provider, configured: Json, error: str
) -> None:
    given = members(provider)
    given["networkProxy"]["proxy"]["credentialProviders"] = configured
    with pytest.raises(RemoteError, match=error):
        start(peer, "p", "true", **given)


def test_a_start_whose_credentials_take_long_to_mask_is_refused(
    peer: WsPeer, provider: Provider, folder: Path
) -> None:
    before = set((folder / "codex" / "proxy").glob("*"))
    names = [f"KEY_{number}" for number in range(100)]
    given = members(provider)
    slow = {"env": names, "patterns": ["(?:a?){200}b"] * 100, "url_prefixes": ["a.example"]}
    given["networkProxy"]["proxy"]["credentialProviders"] = {"slow": slow}
    given["env"] = PATH | dict.fromkeys(names, "a" * 190)
    with pytest.raises(RemoteError, match="the credentials and their patterns take too long to mask"):
        start(peer, "slow", "true", **given)
    assert all(each["processId"] != "slow" for each in peer.call("process/list")["processes"])
    assert set((folder / "codex" / "proxy").glob("*")) == before


def test_a_provider_may_be_written_by_position(peer: WsPeer, provider: Provider) -> None:
    given = members(provider)
    vendor = given["networkProxy"]["proxy"]["credentialProviders"]["vendor"]
    by_position = [vendor["env"], vendor["patterns"], vendor["url_prefixes"], None, ["bearer"]]
    given["networkProxy"]["proxy"]["credentialProviders"] = {"vendor": by_position, "none": []}
    assert run(peer, "p", CURL, **given).stdout == b"Authorization: Bearer " + VENDOR.encode()
