"""Credential masking of a real server: what processes see, and what their provider gets."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from execserver.audit.reading import records
from tests.support.certificates import make_authority
from tests.support.peer import Json, RemoteError
from tests.support.running import PATH, Outcome, outcome, output_until, run, start, start_params, write
from tests.support.sandboxes import Entry, context, managed, read_only, rule, special, workspace_write
from tests.support.server_process import ServerProcess, base_environment
from tests.support.upgrades import upgraded
from tests.support.ws_peer import WsPeer

pytestmark = pytest.mark.ours_only("0.142.0 masks nothing")

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"
TOKEN = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
VENDOR = "vendor_abcdefghijklmnopqrstuvwx"
INHERITED: Json = {
    "inherit": "all",
    "ignoreDefaultExcludes": True,
    "exclude": [],
    "set": {},
    "includeOnly": [],
}
CURL = 'curl -sS --max-time 30 -H "Authorization: Bearer $VENDOR_KEY" "$URL"'
# What can be read of other processes: of a sandbox's own init, too.
LEAKS = (
    "for p in /proc/[0-9]*; do cat $p/environ $p/cmdline 2>/dev/null | tr '\\0' '\\n'; done"
    " | grep -c '[a]bcdefghijkl'"
)


class Provider:
    """A TLS server that answers each request with the credential it came with."""

    def __init__(self, folder: Path) -> None:
        authority = make_authority()
        self.trusted = folder / "trusted.pem"
        self.trusted.write_bytes(authority.pem)
        pem = folder / "server.pem"
        pem.write_bytes(authority.issue("127.0.0.1"))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem)
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}/v1/x"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._sock.accept()
            except OSError:
                return
            with suppress(OSError), self._context.wrap_socket(plain, server_side=True) as sock:
                fields = sock.recv(65536).split(b"\r\n")
                body = b"\n".join(each for each in fields if each.lower().startswith(b"authorization"))
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                sock.recv(1)

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join()

    @property
    def proxy(self) -> Json:
        """The settings of a process that may send its credential here."""
        provider = {
            "env": ["VENDOR_KEY"],
            "patterns": ["vendor_[a-z]{24}"],
            "url_prefixes": [f"https://127.0.0.1:{self.port}/v1"],
        }
        return {
            "proxy": {
                "enabled": True,
                "enableSocks5": True,
                "enableSocks5Udp": False,
                "allowUpstreamProxy": False,
                "dangerouslyAllowAllUnixSockets": False,
                "mode": "full",
                "domains": {"127.0.0.1": "allow"},
                "allowLocalBinding": False,
                "credentialMasking": True,
                "credentialProviders": {"vendor": provider},
            }
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("masking", numbered=True)


@pytest.fixture(scope="module")
def provider(folder: Path) -> Iterator[Provider]:
    made = Provider(folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(provider: Provider, folder: Path) -> Iterator[ServerProcess]:
    own = {"OPENAI_API_KEY": KEY, "GITHUB_TOKEN": TOKEN, "VENDOR_KEY": VENDOR}
    own |= {"CODEX_HOME": str(folder / "codex"), "SSL_CERT_FILE": str(provider.trusted)}
    with ServerProcess(env=base_environment() | own) as running:
        yield running
        assert not any(secret in running.errors() for secret in (KEY, TOKEN, VENDOR))


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[WsPeer]:
    connection = server.connect()
    connection.open_session()
    yield connection
    connection.close()


def members(provider: Provider, **more: Json) -> Json:
    env = PATH | {"URL": provider.url}
    return {"env": env, "envPolicy": INHERITED, "networkProxy": provider.proxy} | more


def sandboxed() -> Json:
    return {"sandbox": read_only(Path("/"), network="enabled"), "enforceManagedNetwork": True}


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


@pytest.mark.parametrize("is_sandboxed", [False, True])
def test_neither_the_audit_log_nor_the_list_of_processes_has_a_real_value(
    provider: Provider, tmp_path: Path, is_sandboxed: bool
) -> None:
    own = {"VENDOR_KEY": VENDOR, "CODEX_HOME": str(tmp_path / "codex")}
    log, more = tmp_path / "audit", sandboxed() if is_sandboxed else {}
    with (
        ServerProcess(options=("--audit", str(log)), env=base_environment() | own) as server,
        server.connect() as peer,
    ):
        peer.open_session()
        argv = ["/bin/sh", "-c", "echo $0; sleep 100", f"--key={VENDOR}"]
        start(peer, "p", argv, **members(provider, record="output", **more))
        shown = json.dumps(peer.call("process/list"))
        with pytest.raises(RemoteError):
            start(peer, "q", ["/nothing/here", VENDOR], **members(provider))
        peer.call("process/terminate", {"processId": "p"})
    assert "--key=vendor_" in shown
    assert VENDOR not in shown
    starts: Json = [each["argv"] for each in records(str(log)) if "argv" in each]
    assert [argv[0] for argv in starts] == ["/bin/sh", "/nothing/here"]
    assert starts[0][3].startswith("--key=vendor_")
    assert not any(VENDOR.encode() in path.read_bytes() for path in log.rglob("*") if path.is_file())


def test_a_credential_of_start_up_files_is_in_no_list_log_or_recording(
    provider: Provider, tmp_path: Path
) -> None:
    own = "vendor_zyxwvutsrqponmlkjihgfedc"
    (tmp_path / ".bash_profile").write_text(f"export VENDOR_KEY={own}\n")
    log = tmp_path / "audit"
    given = members(provider, shellSnapshot={"scopeId": "s", "shell": {"name": "bash", "path": "/bin/bash"}})
    given["env"] |= {"HOME": str(tmp_path)}
    with (
        ServerProcess(
            options=("--audit", str(log)), env=base_environment() | {"CODEX_HOME": str(tmp_path / "codex")}
        ) as server,
        server.connect() as peer,
    ):
        peer.open_session()
        start(peer, "p", ["/bin/bash", "-lc", f"echo --key={own}; sleep 100"], record="output", **given)
        shown = json.dumps(peer.call("process/list"))
        peer.call("process/terminate", {"processId": "p"})
    assert "--key=vendor_" in shown
    assert own not in shown
    assert not any(own.encode() in path.read_bytes() for path in log.rglob("*") if path.is_file())


def test_the_audit_log_hides_words_also_where_a_request_escapes_its_names(
    provider: Provider, tmp_path: Path
) -> None:
    log = tmp_path / "audit"
    own = {"VENDOR_KEY": VENDOR, "CODEX_HOME": str(tmp_path / "codex")}
    with (
        ServerProcess(options=("--audit", str(log)), env=base_environment() | own) as server,
        server.connect() as peer,
    ):
        peer.open_session()
        params = start_params("q", ["/nothing/here", VENDOR], **members(provider))
        request = json.dumps({"id": 77, "method": "process/start", "params": params})
        peer.send_text(request.replace('"credentialMasking"', '"credential\\u004dasking"'))
        assert "error" in peer.take({"id": 77})
    (refusal,) = [each for each in records(str(log)) if each["event"] == "refusal"]
    assert refusal["argv"] == ["/nothing/here", "(credentials are masked)"]
