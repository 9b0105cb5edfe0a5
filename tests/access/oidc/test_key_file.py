"""Keys in a file: read at the start, read again when they change, and nothing while they cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.access.oidc.key_file import KeyFile
from execserver.access.oidc.keys import NoKeys
from tests.support.oidc import ec_key, ed_key, key_set

FIRST, SECOND = ed_key("first"), ec_key("second")


def replace(file: Path, data: bytes) -> None:
    (file.parent / "new").write_bytes(data)
    os.replace(file.parent / "new", file)


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(FIRST))
    keys = KeyFile(str(file))
    assert keys.find("first", "EdDSA") is not None
    replace(file, key_set(SECOND))
    assert keys.find("first", "EdDSA") is None
    assert keys.find("second", "ES256") is not None


def test_while_it_cannot_be_used_there_are_no_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(FIRST))
    keys = KeyFile(str(file))
    for spoil in (file.unlink, lambda: file.write_text("{"), lambda: replace(file, b"")):
        spoil()
        for _ in range(3):
            with pytest.raises(NoKeys):
                keys.find("first", "EdDSA")
    assert len(caplog.records) == 3  # once for each change, whoever asks
    replace(file, key_set(FIRST))
    assert keys.find("first", "EdDSA") is not None


def test_what_is_no_file_of_keys_is_an_error_at_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, text in (
        (tmp_path / "missing", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "fifo", "not one JSON object"),
        (Path("/dev/zero"), "longer than"),
    ):
        with pytest.raises(NoKeys, match=text):
            KeyFile(str(path))
