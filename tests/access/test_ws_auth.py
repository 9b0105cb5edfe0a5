"""The files that `--ws-auth` names: what may be in them, and that no secret shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from execserver.access.ws_auth import WsAuthError, WsAuthOptions, make_authenticator, read_secret
from tests.support.ws_auth import SECRET


def refusal(options: WsAuthOptions) -> str:
    with pytest.raises(WsAuthError) as refused:
        make_authenticator(options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "failed to read websocket auth secret {}: stream did not contain valid UTF-8"),
        (b" \n\t ", "websocket auth secret {} must not be empty"),
        (b"x" * (1024 * 1024 + 1), "websocket auth secret {} must not be larger than 1 MiB"),
    ],
    ids=["no text", "blank", "too large"],
)
def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(WsAuthError) as refused:
        read_secret(str(file))
    assert str(refused.value) == reason.format(file)


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(WsAuthError, match="must not be larger"):
        read_secret("/dev/zero")


def test_a_folder_is_told_as_the_system_tells_it(tmp_path: Path) -> None:
    text = refusal(WsAuthOptions("signed-bearer-token", shared_secret_file=str(tmp_path)))
    assert text == f"failed to read websocket auth secret {tmp_path}: Is a directory (os error 21)"


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("\n a b \n")
    monkeypatch.chdir(tmp_path)
    assert read_secret("token") == "a b"


def test_no_secret_is_in_a_repr(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    path = str(tmp_path / "secret")
    made = [
        make_authenticator(WsAuthOptions("signed-bearer-token", shared_secret_file=path)),
        make_authenticator(WsAuthOptions("capability-token", token_file=path)),
    ]
    assert SECRET.decode() not in repr(made)
