"""A sign-in that goes along with an upgrade: the new program asks nobody, and goes on as the old one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from execserver.handover.records import PackedSignIn
from execserver.remote.auth.handed_over import unpacked
from execserver.remote.auth.kinds import Auth
from tests.remote.auth_scene import FEDRAMP, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A fresh scene."""
    scene = Scene(tmp_path)
    yield scene
    scene.server.stop()


def again(auth: Auth, scene: Scene) -> Auth:
    """Return what another program makes of a sign-in that goes along in the state."""
    packed = auth.pack_sign_in()
    assert packed is not None
    data = msgspec.msgpack.encode(packed)
    names = ("CODEX_AUTHAPI_BASE_URL", "CODEX_REFRESH_TOKEN_URL_OVERRIDE")
    addresses = (scene.server.url, f"{scene.server.url}/token")
    return unpacked(msgspec.msgpack.decode(data, type=PackedSignIn), dict(zip(names, addresses, strict=True)))


def test_a_sign_in_goes_along_to_another_program_which_asks_nobody(scene: Scene) -> None:
    tokens = {"access_token": "a", "refresh_token": "r", "account_id": "acct-1", "id_token": FEDRAMP}
    kinds: list[tuple[dict[str, str], dict[str, object]]] = [
        ({"CODEX_API_KEY": "sk-1"}, {}),
        ({"CODEX_API_KEY": f"esr-{'0' * 12}-{'x' * 43}"}, {}),
        ({"CODEX_ACCESS_TOKEN": "at-1"}, {}),
        ({}, {"OPENAI_API_KEY": "sk-3"}),
        ({}, {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": time.strftime("%Y-%m-%dT%H:%M:%SZ")}),
    ]
    for environ, document in kinds:
        scene.environ = environ
        scene.write(**document)
        before = scene.resolve()
        (scene.home / "auth.json").unlink()
        asked = len(scene.server.asked)
        after = again(before, scene)
        assert after.headers() == before.headers()
        assert (after.is_api_key, after.described) == (before.is_api_key, before.described)
        assert list(after.secrets) == list(before.secrets)
        assert len(scene.server.asked) == asked
        assert again(after, scene).headers() == before.headers()  # and to the next one


def test_tokens_that_went_along_are_refreshed_and_written_back(scene: Scene) -> None:
    tokens = {"access_token": "a", "refresh_token": "r", "account_id": "acct-1"}
    scene.write(auth_mode="chatgpt", tokens=tokens, last_refresh="2020-01-01T00:00:00Z")
    auth = again(scene.resolve(), scene)
    assert ("authorization", "Bearer new") in auth.headers()
    assert json.loads((scene.home / "auth.json").read_text())["tokens"]["refresh_token"] == "r2"
