"""The certificates that masked processes trust: who sees them, who can change them, when they go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.masking_server import (
    CURL,
    KEY,
    VENDOR,
    Provider,
    members,
)
from tests.support.peer import Json, RemoteError
from tests.support.running import PATH, Outcome, outcome, output_until, run, start, write
from tests.support.sandboxes import Entry, context, managed, read_only, rule, special, workspace_write
from tests.support.server_process import ServerProcess, base_environment
from tests.support.ws_peer import WsPeer

pytestmark = pytest.mark.ours_only("0.142.0 masks nothing")


def test_where_no_certificate_can_be_written_it_is_not_announced_and_nothing_starts(
    provider: Provider, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    own = {"OPENAI_API_KEY": KEY, "CODEX_HOME": str(tmp_path / "file")}
    with ServerProcess(env=base_environment() | own) as server, server.connect() as peer:
        peer.open_session()
        told = peer.call("environment/info")["capabilities"]
        assert not told["credentialMasking"]
        assert not told["credentialMaskingCustomProviders"]
        assert told["networkProxyLaunch"]
        with pytest.raises(
            RemoteError, match=r"credentials cannot be masked: .*file is a symlink or no folder"
        ):
            start(peer, "p", "env", **members(provider))
        assert peer.call("process/list")["processes"] == []


@pytest.mark.parametrize("argv", [["/nothing/here"], ["/bin/true"]])
def test_a_start_that_fails_leaves_no_certificates(
    peer: WsPeer, provider: Provider, folder: Path, argv: list[str], tmp_path: Path
) -> None:
    more = {} if argv == ["/nothing/here"] else {"cwd": f"file://{tmp_path}/missing"}
    before = set((folder / "codex" / "proxy").glob("*"))
    with pytest.raises(RemoteError):
        start(peer, "p", argv, **members(provider, **more))
    assert set((folder / "codex" / "proxy").glob("*")) == before


def test_files_that_nobody_uses_are_removed_and_those_in_use_are_not(
    server: ServerProcess, peer: WsPeer, provider: Provider, folder: Path
) -> None:
    start(peer, "p", "echo ready; read go", **members(provider, pipeStdin=True))
    output_until(peer, "p", b"ready\n")
    home = folder / "codex"
    (used,) = (home / "proxy").glob("ca-bundle-*.pem")
    stale = home / "proxy" / f"ca-bundle-{'0' * 64}.pem"
    stale.touch()
    own = {"CODEX_HOME": str(home)}
    with ServerProcess(env=base_environment() | own) as other, other.connect() as connection:
        connection.open_session()
        run(connection, "q", "true", **members(provider))
    assert used.exists()
    assert not stale.exists()
    write(peer, "p", b"go\n", "w")
    assert peer.notification("process/exited")["exitCode"] == 0


def little(work: Path, *more: Entry) -> Json:
    """A sandbox that shows the system and one folder, and not CODEX_HOME."""
    permissions = managed(special("minimal", "read"), rule(work, "write"), *more, network="enabled")
    return {"sandbox": context(permissions, work), "enforceManagedNetwork": True}


def test_a_sandbox_that_shows_little_trusts_the_proxy(
    peer: WsPeer, provider: Provider, folder: Path, tmp_path: Path
) -> None:
    found = run(peer, "p", CURL, **members(provider, **little(tmp_path)))
    assert found.stdout == b"Authorization: Bearer " + VENDOR.encode(), found
    (folder / "codex" / "auth.json").write_text("secret")
    found = run(peer, "q", f"ls {folder}/codex", **members(provider, **little(tmp_path)))
    assert found.stdout == b"proxy\n"
    found = run(peer, "r", f"ls {folder}", sandbox=little(tmp_path)["sandbox"], env=PATH)
    assert (found.stdout, found.exit_code) == (b"", 2)


def test_a_sandbox_whose_policy_denies_the_certificates_is_refused(
    peer: WsPeer, provider: Provider, folder: Path
) -> None:
    denied = read_only(folder, rule(folder / "codex", "deny"), network="enabled")
    found = run(peer, "p", CURL, sandbox=denied, enforceManagedNetwork=True, **members(provider))
    assert b"masked credentials need certificates that the policy denies" in found.stderr
    assert (found.stdout, found.exit_code) == (b"", 1)


def test_a_sandbox_that_may_write_the_home_cannot_change_what_others_trust(
    peer: WsPeer, provider: Provider, folder: Path
) -> None:
    start(peer, "other", "read go; " + CURL, **members(provider, pipeStdin=True))
    may_write = {"sandbox": workspace_write(folder, network="enabled"), "enforceManagedNetwork": True}
    attack = (
        "cd codex; for one in proxy/*.pem; do echo mine > $one; rm -f $one; done;"
        "mv proxy moved; rm -r proxy; ln -s /tmp proxy; touch proxy/x; cd ..; mv codex away; echo done"
    )
    found = run(peer, "attack", attack, cwd=f"file://{folder}", **members(provider, **may_write))
    assert found.stdout == b"done\n", found
    assert [path.name for path in (folder / "codex").iterdir() if path.suffix != ".json"] == ["proxy"]
    assert {path.suffix for path in (folder / "codex" / "proxy").iterdir()} == {".pem"}
    assert write(peer, "other", b"go\n", "w") == "accepted"
    assert outcome(peer, "other").stdout.endswith(b"Authorization: Bearer " + VENDOR.encode())


def test_the_first_command_of_a_server_cannot_change_what_others_trust(
    provider: Provider, tmp_path: Path
) -> None:
    """The folder for certificates is not there before its plan is made."""
    home = tmp_path / "codex"
    own = {"VENDOR_KEY": VENDOR, "CODEX_HOME": str(home), "SSL_CERT_FILE": str(provider.trusted)}
    attack = (
        "mkdir -p codex/proxy; echo ready; read go; echo planted > own;"
        "for one in codex/proxy/*.pem; do mv own $one; echo planted > $one; done; echo done"
    )
    with ServerProcess(env=base_environment() | own) as server, server.connect() as peer:
        peer.open_session()
        work = {"sandbox": workspace_write(tmp_path), "cwd": f"file://{tmp_path}"}
        attacker, victim = Outcome(), Outcome()
        start(peer, "attack", attack, pipeStdin=True, **work)
        output_until(peer, "attack", b"ready\n", attacker)
        other = members(provider, pipeStdin=True)
        start(peer, "other", f'echo ready; read go; grep planted "$SSL_CERT_FILE"; {CURL}', **other)
        output_until(peer, "other", b"ready\n", victim)
        write(peer, "attack", b"go\n", "w")
        assert outcome(peer, "attack", attacker).stdout == b"ready\ndone\n"
        write(peer, "other", b"go\n", "w")
        assert outcome(peer, "other", victim).stdout == b"ready\nAuthorization: Bearer " + VENDOR.encode()
