"""The answers about the machine: the shell first, nothing untrue behind it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from execserver.protocol.methods import METHODS
from execserver.protocol.paths import PathUri
from execserver.protocol.session import InitializeResponse
from execserver.services.machine.environment import EnvironmentService, home_folder
from execserver.version import CONTRACT_VERSION, __version__


def service(environ: dict[bytes, bytes], home: bytes | None = b"/home/user") -> EnvironmentService:
    return EnvironmentService(environ, find_login_shell=lambda _: "/bin/sh", find_home=lambda _: home)


def described(environ: dict[bytes, bytes], home: bytes | None = b"/home/user") -> dict[str, Any]:
    result = json.loads(bytes(service(environ, home).initialize_result("s")))
    assert list(result) == ["sessionId", "environmentInfo"]
    info: dict[str, Any] = result["environmentInfo"]
    return info


def test_environment_info_is_what_initialize_answers_too() -> None:
    one = service({b"HOME": b"/root"})
    assert bytes(one.info).startswith(b'{"shell":{"name":"sh","path":"/bin/sh"},')
    result = json.loads(bytes(one.initialize_result("s")))
    assert result["environmentInfo"] == json.loads(bytes(one.info))


def test_environment_status_is_ready() -> None:
    assert bytes(service({}).status) == b'{"status":"ready"}'


def test_the_user_asked_for_is_the_servers() -> None:
    asked: list[int] = []
    EnvironmentService({}, find_login_shell=lambda uid: asked.append(uid), find_home=home_folder)
    assert asked == [os.getuid()]


def test_initialize_describes_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b%é"
    folder.mkdir()
    monkeypatch.chdir(folder)
    info = described({b"HOME": b"/root", b"TMPDIR": b"/var/tmp"})
    capabilities, extensions = info.pop("capabilities"), info.pop("execserver")
    assert info == {
        "shell": {"name": "sh", "path": "/bin/sh"},
        "executorVersion": CONTRACT_VERSION,
        "cwd": PathUri.from_native(os.fsencode(tmp_path)).uri + "/a%20b%25%C3%A9",
        "userHomeDir": "file:///root",
        "platformOs": "linux",
        "prependPathDirs": [],
        "temporaryDirectories": ["file:///var/tmp"],
        "tempDir": "file:///var/tmp",
    }
    assert extensions["version"] == __version__
    assert capabilities["httpHeaderEnvVars"] is True
    assert capabilities["sandboxedFileStreaming"] is True
    assert capabilities["fileWriteStreaming"] is ("fs/writeBlock" in METHODS)
    assert capabilities["fsWatchMissing"] is True
    assert capabilities["environmentConfigRead"] is True
    assert capabilities["capabilityDiscoveryV2"] is True
    assert capabilities["capabilityDiscoverySandbox"] is True
    assert capabilities["shellSnapshotV2"] is True
    assert capabilities["windowsMxc"] is False
    assert extensions["processResize"] is ("process/resize" in METHODS)


@pytest.mark.parametrize(
    ("given", "told"),
    [(b"0.170.0-alpha.1", "0.170.0-alpha.1"), (b"", CONTRACT_VERSION), (b"new", CONTRACT_VERSION)],
)
def test_the_version_for_clients_is_the_contracts_or_what_is_asked_for(given: bytes, told: str) -> None:
    assert described({b"EXECSERVER_CONTRACT_VERSION": given})["executorVersion"] == told


def test_the_session_id_comes_first_and_decodes_as_the_contracts_record() -> None:
    import msgspec

    from execserver.protocol.record import decode_value

    text = bytes(service({}).initialize_result("0f"))
    record = msgspec.json.decode(text, type=InitializeResponse, dec_hook=decode_value)
    assert record.session_id == "0f"
    assert not isinstance(record.environment_info, msgspec.UnsetType)
    assert record.environment_info.shell.path == "/bin/sh"


@pytest.mark.parametrize(
    ("variable", "home", "expected"),
    [
        (b"/root", b"/home/user", "file:///root"),
        (None, b"/home/user", "file:///home/user"),
        (b"", b"/home/user", "file:///home/user"),
        (b"relative", b"/home/user", None),
        (None, None, None),
    ],
)
def test_home_is_the_variable_or_the_passwd_entry(
    variable: bytes | None, home: bytes | None, expected: str | None
) -> None:
    environ = {} if variable is None else {b"HOME": variable}
    assert described(environ, home).get("userHomeDir") == expected


@pytest.mark.parametrize(
    ("tmpdir", "directories", "folder"),
    [
        (None, [], "file:///tmp"),
        (b"", [], "file:///tmp"),
        (b"/t\xff", ["file:///t%FF"], "file:///t%FF"),
        (b"rel/x", ["file://{CWD}/rel/x"], "file://{CWD}/rel/x"),
    ],
)
def test_temporary_folders_come_from_tmpdir(
    tmpdir: bytes | None, directories: list[str], folder: str
) -> None:
    info = described({} if tmpdir is None else {b"TMPDIR": tmpdir})
    cwd = info["cwd"].removeprefix("file://")
    assert info["temporaryDirectories"] == [each.replace("{CWD}", cwd) for each in directories]
    assert info["tempDir"] == folder.replace("{CWD}", cwd)


def test_a_removed_working_directory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "cwd" not in described({})


def test_nothing_unknown_is_sent() -> None:
    info = described({})
    assert "providerId" not in info
    assert None not in info.values()
