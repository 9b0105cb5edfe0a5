"""The list of tokens in its file: kept as a whole, readable by its user only, and never guessed."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from execserver.access.tokens import store
from execserver.access.tokens.caveats import BadCaveat
from execserver.access.tokens.chain import genuine
from execserver.access.tokens.store import TokenStoreError
from execserver.runtime_paths import TOKEN_STORE_FILE

NOW = 1_000_000.5


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    return os.fsencode(tmp_path / "config" / "tokens")


def file_of(folder: bytes) -> Path:
    return Path(os.fsdecode(folder + b"/" + TOKEN_STORE_FILE))


def test_an_issued_token_is_listed_without_its_secret(folder: bytes) -> None:
    token = store.issue(folder, ("l-ci", "u-5"), NOW)
    listed = store.read(folder)
    assert listed.tokens == {token.id: store.Issued(token.id, ("l-ci", "u-5"), 1_000_000)}
    assert genuine(listed.key, token)
    assert token.mac not in file_of(folder).read_text()
    assert listed.key.hex() not in repr(listed)


def test_only_its_user_can_come_to_the_list(folder: bytes) -> None:
    old = os.umask(0)
    try:
        store.issue(folder, (), NOW)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(file_of(folder).stat().st_mode) == 0o600
    assert [path.name for path in file_of(folder).parent.iterdir()] == ["tokens.json"]


def test_the_key_stays_with_further_tokens(folder: bytes) -> None:
    first = store.issue(folder, (), NOW)
    second = store.issue(folder, (), NOW)
    listed = store.read(folder)
    assert genuine(listed.key, first)
    assert genuine(listed.key, second)
    assert [*listed.tokens] == [first.id, second.id]


def test_a_token_is_revoked_once(folder: bytes) -> None:
    token = store.issue(folder, (), NOW)
    assert store.revoke(folder, token.id, NOW + 1)
    assert not store.revoke(folder, token.id, NOW + 2)
    assert not store.revoke(folder, "0" * 16, NOW)
    assert store.read(folder).tokens[token.id].revoked == 1_000_001


def test_without_a_list_nothing_is_read_revoked_or_made(folder: bytes) -> None:
    for act in (lambda: store.read(folder), lambda: store.revoke(folder, "0" * 16, NOW)):
        with pytest.raises(TokenStoreError, match="make a first token"):
            act()
    assert not os.path.exists(folder)


def test_a_bad_caveat_changes_nothing(folder: bytes) -> None:
    store.issue(folder, (), NOW)
    before = file_of(folder).read_bytes()
    with pytest.raises(BadCaveat):
        store.issue(folder, ("everything",), NOW)
    assert file_of(folder).read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_can_open_is_refused(folder: bytes, mode: int) -> None:
    store.issue(folder, (), NOW)
    file_of(folder).chmod(mode)
    with pytest.raises(TokenStoreError, match="chmod 600"):
        store.read(folder)
    with pytest.raises(TokenStoreError, match="chmod 600"):
        store.issue(folder, (), NOW)


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o770, 0o777])
def test_a_folder_that_others_can_enter_is_refused(folder: bytes, mode: int) -> None:
    store.issue(folder, (), NOW)
    os.chmod(folder, mode)
    for act in (lambda: store.read(folder), lambda: store.issue(folder, (), NOW)):
        with pytest.raises(TokenStoreError, match="chmod 700"):
            act()


def test_a_symlink_is_no_list(folder: bytes, tmp_path: Path) -> None:
    store.issue(folder, (), NOW)
    elsewhere = tmp_path / "elsewhere.json"
    file_of(folder).rename(elsewhere)
    file_of(folder).symlink_to(elsewhere)
    with pytest.raises(TokenStoreError):
        store.read(folder)


def test_a_directory_is_no_list(folder: bytes) -> None:
    file_of(folder).mkdir(0o700, parents=True)
    file_of(folder).parent.chmod(0o700)
    with pytest.raises(TokenStoreError, match="Is a directory"):
        store.read(folder)


GOOD = {"version": 1, "key": "00" * 32, "tokens": []}
ENTRY = {"id": "0" * 16, "caveats": [], "created": 1, "revoked": None}
BROKEN = [
    "",
    "[]",
    "{}",
    "\udcff",
    "[" * 100_000,
    json.dumps({**GOOD, "version": 2}),
    json.dumps({**GOOD, "key": "00" * 31}),
    json.dumps({**GOOD, "key": None}),
    json.dumps({**GOOD, "tokens": {}, "key": "xx" * 32}),
    *(json.dumps({**GOOD, "tokens": [{**ENTRY, name: "?"}]}) for name in ENTRY),
    json.dumps({**GOOD, "tokens": [{**ENTRY, "caveats": ["w"]}]}),
    json.dumps({**GOOD, "tokens": [{**ENTRY, "caveats": [1]}]}),
]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_what_is_not_a_list_is_refused_and_stays(folder: bytes, content: str) -> None:
    os.makedirs(folder, 0o700)
    file_of(folder).write_text(content, errors="surrogateescape")
    file_of(folder).chmod(0o600)
    for act in (lambda: store.read(folder), lambda: store.issue(folder, (), NOW)):
        with pytest.raises(TokenStoreError, match="not a list of tokens"):
            act()
    assert file_of(folder).read_text(errors="surrogateescape") == content


def test_a_full_list_forgets_what_is_over_and_then_refuses(
    folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_TOKENS", 2)
    over = store.issue(folder, ("u-5",), NOW)
    kept = store.issue(folder, (), NOW)
    new = store.issue(folder, (), NOW)
    assert [*store.read(folder).tokens] == [kept.id, new.id]
    assert over.id not in store.read(folder).tokens
    with pytest.raises(TokenStoreError, match="revoke some"):
        store.issue(folder, (), NOW)


def test_concurrent_changes_are_all_kept(folder: bytes) -> None:
    def work() -> None:
        issued.extend([store.issue(folder, (), NOW).id for _ in range(5)])

    issued: list[str] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(store.read(folder).tokens) == sorted(issued)
    assert len(issued) == 20


def test_a_lock_that_is_held_is_not_waited_for_for_ever(
    folder: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.issue(folder, (), NOW)
    monkeypatch.setattr(store, "_LOCK_S", 0.0)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TokenStoreError, match="holds its lock"):
            store.issue(folder, (), NOW)
        assert len(store.read(folder).tokens) == 1
    finally:
        os.close(held)
    store.issue(folder, (), NOW)


def test_a_file_left_by_a_killed_process_is_no_obstacle(folder: bytes) -> None:
    store.issue(folder, (), NOW)
    left = Path(os.fsdecode(folder)) / "tokens.json.new"
    left.write_text("half")
    store.issue(folder, (), NOW)
    assert not left.exists()
    assert len(store.read(folder).tokens) == 2


def test_where_the_list_is(tmp_path: Path) -> None:
    home = os.fsencode(tmp_path.resolve())
    assert store.default_folder({b"HOME": home}) == home + b"/.config/execserver/tokens"
    assert (
        store.default_folder({b"HOME": home, b"XDG_CONFIG_HOME": home + b"/x"})
        == home + b"/x/execserver/tokens"
    )
    named = {b"HOME": home, b"EXECSERVER_TOKEN_STORE": home + b"/here"}
    assert store.default_folder(named) == home + b"/here"


def test_a_place_that_is_not_absolute_is_refused(tmp_path: Path) -> None:
    """Another folder would be taken in silence, with other tokens in it."""
    environ = {b"HOME": os.fsencode(tmp_path), b"EXECSERVER_TOKEN_STORE": b"here"}
    with pytest.raises(TokenStoreError, match="EXECSERVER_TOKEN_STORE is not an absolute path: here"):
        store.default_folder(environ)
