"""The newest reference server's recorded answers about credential masking, and where ours does better."""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import own_cache
from tests.support.folders import plain_place
from tests.support.newest import environment_in, lines_of, make_files
from tests.support.running import Outcome, outcome
from tests.support.server_process import OURS, ServerProcess, base_environment
from tests.support.stdio_peer import StdioPeer

pytestmark = pytest.mark.ours_only("0.142.0 masks nothing")

NAME = "19-networkProxy-credential-masking"
# The reference masks commands of `bash -c` alone, and says nothing of the rest.
UNMASKED_THERE = ("n2", "n7")
# Its providers that cannot be used are silently none; here a variable names them.
TOLD = {
    "n8": [["a", "it has no patterns"]],
    "n10": [["a", "`header` and the auth `header` need each other"]],
    "n11": [["a", "a destination is no https URL without user, query and fragment"]],
    "n12": [["a", "a pattern cannot be used: it ends too early"]],
}
# A stand-in of `hunter.*` has letters and digits only here, any character there.
LOOSE = {"n9": "hunter"}
LISTED = "CODEX_NETWORK_PROXY_BROKERED_CREDENTIALS"
ACTIVE = "CODEX_NETWORK_PROXY_CREDENTIAL_BROKER_ACTIVE"
TELLS = "EXECSERVER_UNMASKED_CREDENTIALS"
OWN = {"PATH", "_", "SHLVL", *base_environment(), *own_cache()} - {"HOME"}  # of the machines

Message = dict[str, Any]


class Recorded:
    """One start: its request, its answer, and its output."""

    def __init__(self, request: Message) -> None:
        self.request = request
        self.answer: Message = {}
        self.output = ""

    @property
    def name(self) -> str:
        """The id of the process."""
        return str(self.request["params"]["processId"])


def recorded(root: Path) -> list[Recorded]:
    found: list[Recorded] = []
    for line in lines_of(NAME, root)[4:]:
        message = line["msg"]
        if line["dir"] == ">":
            found.append(Recorded(message))
        elif "id" in message:
            found[-1].answer = message
        elif message["method"] == "process/output":
            text = base64.b64decode(message["params"]["chunk"]).decode()
            found[-1].output += text.replace("/ROOT", str(root))
    return found


def variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def plain(value: str) -> str:
    """Return a value without what is random."""
    value = re.sub(r"127\.0\.0\.1:([0-9]+|PORT)", "127.0.0.1:PORT", value)
    value = re.sub(r"ca-bundle-[0-9a-f]{64}", "ca-bundle", value)
    value = re.sub(r"hunter2hunter[013-9]", "hunter2hunterN", value)
    return re.sub(r"masked([A-Za-z0-9]+)", lambda found: f"masked<{len(found[1])}>", value)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="module")
def played(root: Path) -> dict[str, tuple[Recorded, Message, Outcome | None]]:
    """What came of each start, in order."""
    lines = lines_of(NAME, root)
    make_files(root, {})
    started = replace(OURS, env=environment_in(root) | lines[0]["msg"]["env"])
    base = {key: value for key, value in base_environment().items() if key != "TMPDIR"} | own_cache()
    found = {}
    with ServerProcess(started, listen="stdio", env=base, cwd=root / "cwd") as server:
        with server.stdio() as peer:
            assert isinstance(peer, StdioPeer)
            peer.open_session()
            for one in recorded(root):
                peer.send(one.request)
                answer = peer.take({"id": one.request["id"]})
                ended = outcome(peer, one.name) if "result" in answer else None
                found[one.name] = (one, answer, ended)
        server.close_stdin()
        server.wait()
    return found


Played = dict[str, tuple[Recorded, Message, Outcome | None]]


@pytest.mark.parametrize("number", range(1, 17))
def test_the_answer_is_the_recorded_one(number: int, played: Played) -> None:
    one, answer, _ = played[f"n{number}"]
    assert answer.get("result") == one.answer.get("result")
    if "error" in one.answer:
        assert answer["error"]["code"] == one.answer["error"]["code"]
        assert one.answer["error"]["message"] in answer["error"]["message"]


@pytest.mark.parametrize("number", [*range(1, 14)])
def test_the_environment_is_the_recorded_one(number: int, played: Played) -> None:
    name = f"n{number}"
    one, _, ended = played[name]
    assert ended is not None
    theirs, ours = variables(one.output), variables(ended.stdout.decode())
    assert json.loads(ours.pop(TELLS, "[]")) == TOLD.get(name, [])
    listed = dict(json.loads(ours.pop(LISTED)))
    if name in UNMASKED_THERE:
        assert ours.pop(ACTIVE) == "1"
        names = {"OPENAI_API_KEY", "GITHUB_TOKEN"}
        assert all("masked" in ours.pop(one) and "masked" not in theirs.pop(one) for one in names)
    else:
        recorded_list = dict(json.loads(theirs.pop(LISTED)))
        assert listed.keys() == recorded_list.keys()
        assert {each: ours[each] for each in listed if not each.startswith("@")} == {
            each: value for each, value in listed.items() if not each.startswith("@")
        }
    if prefix := LOOSE.get(name):
        assert ours.pop("MY_SECRET").startswith(prefix)
        assert theirs.pop("MY_SECRET").startswith(prefix)
    for each in OWN:
        ours.pop(each, None)
        theirs.pop(each, None)
    assert {each: plain(value) for each, value in ours.items()} == {
        each: plain(value) for each, value in theirs.items()
    }


def test_the_same_credentials_have_the_same_stand_ins(played: Played) -> None:
    shown = [variables(ended.stdout.decode()) for _, _, ended in played.values() if ended is not None]
    keys = [env["OPENAI_API_KEY"] for env in shown if "OPENAI_API_KEY" in env]
    assert len(keys) == 13
    assert len(set(keys)) == 2  # one start has another value


def test_the_certificates_are_where_the_recording_has_them(played: Played) -> None:
    _, _, ended = played["n16"]
    assert ended is not None
    lines = ended.stdout.decode().splitlines()
    named = [line for line in lines if re.fullmatch(r"[A-Z_]+=ca-bundle-[0-9a-f]{64}\.pem", line)]
    assert len(named) == 9
    assert any(re.search(r"^-rw-r--r-- .* ca-bundle-[0-9a-f]{64}\.pem$", line) for line in lines)
    assert any(line.startswith("-----BEGIN CERTIFICATE-----") for line in lines)
