"""What the server tells and keeps of masked processes has stand-ins: lists, audit log, recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from execserver.audit.reading import records
from tests.support.masking_server import (
    VENDOR,
    Provider,
    members,
    sandboxed,
)
from tests.support.peer import Json, RemoteError
from tests.support.running import start, start_params
from tests.support.server_process import ServerProcess, base_environment

pytestmark = pytest.mark.ours_only("0.142.0 masks nothing")


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
