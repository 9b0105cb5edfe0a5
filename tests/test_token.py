"""`execserver token`: as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from execserver.access.identity import Grant
from execserver.access.tokens import store
from execserver.access.tokens.authenticator import TokenAuthenticator
from execserver.access.tokens.caveats import caveats, restricted
from execserver.access.tokens.chain import Token, genuine, parsed
from tests.support.source import ROOT

ID = re.compile(r"[0-9a-f]{16}")


class User:
    """Somebody with a home at a shell."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = os.fsencode(home.resolve()) + b"/.config/execserver/tokens"

    def run(self, *words: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(ROOT / "execserver" / "__main__.py"), "token", *words]
        env = {"HOME": str(self.home), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **environ}
        return subprocess.run(
            *(command,),
            input=stdin,
            env=env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def new(self, *words: str) -> Token:
        done = self.run("new", *words)
        assert done.returncode == 0, done.stderr
        return parsed(done.stdout.removesuffix("\n"))

    def narrow(self, token: Token, *words: str) -> Token:
        done = self.run("narrow", *words, stdin=f"{token.text}\n", HOME="/nonexistent")
        assert (done.returncode, done.stderr) == (0, "")
        return parsed(done.stdout.removesuffix("\n"))

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("list", "--json").stdout)
        return found


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def test_a_new_token_is_alone_on_stdout_and_counts(user: User) -> None:
    done = user.run("new", "--label", "ci")
    token = parsed(done.stdout.removesuffix("\n"))
    assert genuine(store.read(user.folder).key, token)
    assert token.mac not in done.stderr
    assert done.stderr.startswith(f"token {token.id}  valid    -                     ci  no limits\n")


def test_the_options_of_a_new_token_become_its_caveats(user: User) -> None:
    (user.home / "a").mkdir()
    (user.home / "b").mkdir()
    (user.home / "link").symlink_to("a")
    here = str(user.home.resolve())
    until = ["--until", "2030-01-31T12:00:00Z"]
    token = user.new(*until, "--no-network", "--roots", "link", "b", "--label", "x")
    left = restricted(token.caveats)
    assert left.grant() == Grant((f"{here}/a", f"{here}/b"), False, False)
    assert (left.until, left.labels) == (1_896_091_200, ("x",))
    again = user.new("--roots", "a", "--roots", f"{here}/b", "--read-only")
    assert restricted(again.caveats).grant() == Grant((f"{here}/a", f"{here}/b"), True, True)


@pytest.mark.parametrize(("span", "seconds"), [("90s", 90), ("15m", 900), ("8h", 28_800), ("7d", 604_800)])
def test_a_span_begins_now(user: User, span: str, seconds: int) -> None:
    token = user.new("--until", span)
    issued = store.read(user.folder).tokens[token.id]
    assert issued.restrictions.until == issued.created + seconds


def test_narrowing_needs_neither_list_nor_folders(user: User) -> None:
    token = user.new("--label", "ci")
    less = user.narrow(token, "--roots", "/no/such/folder/", "--no-network", "--label", "bot")
    assert less.caveats == (*token.caveats, *caveats(label="bot", roots=[b"/no/such/folder"], network=False))
    identity = TokenAuthenticator(user.folder).identify(b"Bearer " + less.text.encode(), 0)
    assert identity.grant == Grant(("/no/such/folder",), False, False)
    assert identity.name == f"{token.id} ci/bot"


def test_a_list_shows_what_each_may_do_and_no_secret(user: User) -> None:
    (user.home / "a").mkdir()
    first = user.new("--label", "one", "--roots", "a", "--until", "1970-01-02T00:00:00Z")
    second = user.new("--read-only", "--no-network")
    third = user.new()
    assert user.run("revoke", third.id).stderr == f"token {third.id} is revoked\n"
    done = user.run("list")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{first.id}  expired  1970-01-02T00:00:00Z  one  roots {user.home.resolve()}/a",
        f"{second.id}  valid    -                     -  read only, no network",
        f"{third.id}  revoked  -                     -  no limits",
    ]
    assert not any(token.mac in done.stdout for token in (first, second, third))
    assert [(each["id"], each["state"]) for each in user.listed()] == [
        *((first.id, "expired"), (second.id, "valid"), (third.id, "revoked"))
    ]
    assert user.listed()[0]["roots"] == [f"{user.home.resolve()}/a"]
    assert (user.listed()[1]["readOnly"], user.listed()[1]["network"]) == (True, False)


def test_another_place_is_named_by_the_environment(user: User) -> None:
    place = str(user.home / "store")
    assert user.run("new", EXECSERVER_TOKEN_STORE=place).returncode == 0
    assert len(store.read(os.fsencode(user.home.resolve()) + b"/store").tokens) == 1
    assert not os.path.exists(user.folder)


def test_what_is_not_there_cannot_be_revoked_or_listed(user: User) -> None:
    for words in (["list"], ["revoke", "0" * 16]):
        done = user.run(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "make a first token: execserver token new" in done.stderr
    token = user.new()
    done = user.run("revoke", token.text)  # by mistake the token itself
    assert done.returncode == 1
    assert "there is no such valid token" in done.stderr
    assert token.mac not in done.stderr


@pytest.mark.parametrize("text", ["", "x", "xst1", "\n", "x" * 100_000, "\0"])
def test_what_is_no_token_cannot_be_narrowed(user: User, text: str) -> None:
    done = user.run("narrow", "--read-only", stdin=text)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: stdin holds no token: it ")


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ([], 2, "an action is missing"),
        (["make"], 2, "unexpected argument 'make' found"),
        (["new", "--json"], 2, "unexpected argument '--json' found"),
        (["new", "folder"], 2, "unexpected argument 'folder' found"),
        (["new", "--until"], 2, "a value is required for '--until <TIME>'"),
        (["new", "--until", "8x"], 1, "invalid time '8x'; expected e.g. `8h` or"),
        (["new", "--until", "2030-13-01T00:00:00Z"], 1, "invalid time"),
        (["new", "--label", "a b"], 1, "invalid label 'a b': up to 64 letters"),
        (["new", "--roots", "missing"], 1, "missing: there is no such folder"),
        (["new", "--roots", ""], 1, "there is no such folder"),
        (["narrow"], 1, "there is nothing to take away"),
        (["narrow", "--roots", "here"], 1, "here: a root is an absolute path"),
        (["narrow", "--roots", "/a/../b"], 1, "a root is an absolute path without"),
        (["list", "all"], 2, "unexpected argument 'all' found"),
        (["revoke"], 2, "<TOKEN-ID>"),
    ],
)
def test_mistakes_are_told(user: User, words: list[str], status: int, complaint: str) -> None:
    done = user.run(*words)
    assert (done.returncode, done.stdout) == (status, "")
    assert complaint in done.stderr
    assert not os.path.exists(user.folder)


def test_help_names_every_action(user: User) -> None:
    for words in (["--help"], ["new", "--help"], ["revoke", "-h"]):
        done = user.run(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert all(
            f"execserver token {action}" in done.stdout for action in ("new", "narrow", "list", "revoke")
        )
