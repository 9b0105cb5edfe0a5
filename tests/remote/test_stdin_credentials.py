"""Credentials from stdin, as recorded: which are taken, which header they become, how others are told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from execserver.remote.auth.stdin_credentials import (
    ChatGptToken,
    ExecutorCredential,
    RegistrationBearer,
    StdinCredential,
)
from execserver.remote.errors import SignInError

FOLDER = Path(__file__).parents[1] / "transcripts" / "newest"
NOW = 1_795_348_000  # before everything that was recorded
# Told by the program around: by its addresses, by stdin's end, by time.
AROUND = ("http non-loopback", "userinfo", "no newline, open", "nothing, 3 s", "frame, closed")
CLOSED_AFTERWARDS = ("no newline, closed", "no newline")


def recorded(name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line)["msg"] for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    return [each for each in lines if "case" in each and each["case"] not in AROUND and each["stdin"]]


def whole(text: str, case: str) -> str:
    """Return an input whose middle was left out in the record."""
    if found := re.fullmatch(r"token of (\d+)", case):
        frame = {"version": 1, "environment_id": "env1", "token": "t" * int(found[1]), "expires_at": NOW + 9}
        return json.dumps(frame) + "\n"
    if case.isdigit():
        return "a" * int(case) + "\n"
    return {"long": f"{'a' * 20_000}\n", "16k": f"a.{'b' * 16_384}\n"}.get(case, text)


def outcome(credential: StdinCredential, case: dict[str, Any]) -> tuple[str, str]:
    """Return what the registration sends, and the error."""
    header = ""
    try:
        for piece in case["stdin"]:
            if isinstance(piece, str):
                credential.feed(whole(piece, case["case"]).encode("latin-1"))
                if credential.auth is not None and not header:
                    header = dict(credential.auth.headers())["authorization"]
        if case["case"] in CLOSED_AFTERWARDS:
            credential.end()
    except SignInError as error:
        return header, f"Error: {error.text}"
    return header, ""


def check(credential: StdinCredential, case: dict[str, Any]) -> None:
    header, error = outcome(credential, case)
    assert error == case["stderr"]
    if case["registration"] is not None:
        sent = case["registration"][0]["authorization"]
        shown = re.sub(r"\{(\d+) x (.)\}", lambda found: found[2] * int(found[1]), sent)
        assert header == shown or "{" in shown or header.startswith(shown[:40])


@pytest.mark.parametrize("case", recorded("51-registration-bearer-stdin"), ids=lambda case: case["case"])
def test_a_registration_bearer_is_taken_as_recorded(case: dict[str, Any]) -> None:
    check(RegistrationBearer(), case)


@pytest.mark.parametrize("case", recorded("52-executor-credential-stdin"), ids=lambda case: case["case"])
def test_an_executor_credential_is_taken_as_recorded(case: dict[str, Any]) -> None:
    now = 1_795_348_600 if case["case"] == "second frame expired" else NOW
    check(ExecutorCredential("env1", lambda: now, lambda secret: None), case)


@pytest.mark.parametrize("case", recorded("53-chatgpt-token-stdin"), ids=lambda case: case["case"])
def test_a_chatgpt_token_is_taken_as_recorded(case: dict[str, Any]) -> None:
    account = case["argv"][2] if len(case["argv"]) == 3 else None
    if case["case"] == "bad flag":
        with pytest.raises(SignInError, match="invalid ChatGPT account ID"):
            ChatGptToken(account)
    else:
        check(ChatGptToken(account), case)


def test_an_expired_credential_signs_nothing() -> None:
    times = [10.0]
    credential = ExecutorCredential("e", lambda: times[-1], lambda secret: None)
    credential.feed(b'{"version":1,"environment_id":"e","token":"secret-t","expires_at":20}\n')
    assert credential.headers() == [("authorization", "Bearer secret-t")]
    times.append(20.0)
    with pytest.raises(SignInError) as refused:
        credential.headers()
    assert refused.value.text.endswith("request auth build error: exec-server executor credential is expired")
    assert "secret-t" not in refused.value.text


def test_a_frame_may_come_in_pieces_and_every_token_is_a_secret() -> None:
    learnt: list[str] = []
    credential = ExecutorCredential("e", lambda: 0.0, learnt.append)
    frames = b"".join(
        b'{"version":1,"environment_id":"e","token":"t%d","expires_at":20}\n' % number for number in (1, 2)
    )
    for at in range(len(frames)):
        credential.feed(frames[at : at + 1])
    assert (learnt, credential.secrets) == (["t1", "t2"], ("t2",))


def test_what_has_no_end_is_not_kept() -> None:
    for credential in (RegistrationBearer(), ChatGptToken(None), ExecutorCredential("e", lambda: 0.0, print)):
        with pytest.raises(SignInError):
            _flood(credential)


def _flood(credential: StdinCredential) -> None:
    for _ in range(100):
        credential.feed(b"x" * 1024)


def test_what_stdin_has_brought_goes_along_to_another_program() -> None:
    """Also a part of a line; what comes afterwards is taken as ever."""
    learnt: list[str] = []

    def executor() -> ExecutorCredential:
        return ExecutorCredential("e", lambda: 0.0, learnt.append)

    frame = b'{"version":1,"environment_id":"e","token":"%s","expires_at":20}\n'
    makes: list[tuple[Callable[[], StdinCredential], bytes]] = [
        (RegistrationBearer, b"of-the-test\n"),
        (executor, frame % b"t1"),
    ]
    for make, line in makes:
        for cut in range(len(line) + 1):
            before, after = make(), make()
            before.feed(line[:cut])
            after.restore(before.pack())
            assert (after.auth is None) == (cut < len(line))
            after.feed(line[cut:])
            further = make()
            further.restore(after.pack())
            assert after.auth is not None
            assert further.auth is not None
            assert after.auth.headers() == further.auth.headers()
    later, last = executor(), executor()
    later.feed(frame % b"t1" + (frame % b"t2")[:30])
    last.restore(later.pack())
    assert last.headers() == [("authorization", "Bearer t1")]
    last.feed((frame % b"t2")[30:])
    assert (last.headers(), learnt[-1]) == ([("authorization", "Bearer t2")], "t2")
