"""A server with `--ws-auth execserver-token`: who gets in, with what, and for how long."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.access.tokens import store
from execserver.access.tokens.caveats import caveats
from execserver.access.tokens.chain import Token, narrowed
from execserver.runtime_paths import token_stores
from tests.support.accounts import own_cache
from tests.support.peer import Json, PeerClosed, ProtocolFault, RemoteError
from tests.support.running import run, start
from tests.support.server_process import OURS, ServerProcess, base_environment
from tests.support.ws_peer import WsPeer

POLICY_VIOLATION = 1008

ROOT = Path(__file__).resolve().parents[2]
MODE = ("--ws-auth", "execserver-token")


class Desk:
    """A server that takes the tokens of a list, and the list."""

    def __init__(self, server: ServerProcess, folder: bytes, home: Path) -> None:
        self.server = server
        self.folder = folder
        self.home = home

    def issue(self, *given: str) -> Token:
        return store.issue(self.folder, given, time.time())

    def connect(self, token: Token, resume: str | None = None) -> tuple[WsPeer, str]:
        peer = WsPeer.connect(self.server.url, headers=[f"Authorization: Bearer {token.text}"])
        try:
            return peer, peer.open_session(resume)
        except BaseException:
            peer.close()
            raise

    def refuses(self, token: Token) -> bool:
        try:
            self.connect(token)[0].close()
        except ProtocolFault as fault:
            return "401" in str(fault)
        return False


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    home = tmp_path_factory.mktemp("home").resolve()
    folder = token_stores({b"HOME": os.fsencode(home)})[0]
    first = store.issue(folder, ("l-first",), time.time())
    env = {**base_environment(), **own_cache(), "HOME": str(home), "EXECSERVER_LOG": "debug"}
    with ServerProcess(OURS, options=MODE, env=env, cwd=ROOT) as server:
        yield Desk(server, folder, home)
        told = server.errors()
        assert first.mac not in told
        assert "Traceback" not in told


def tried(peer: WsPeer, method: str, **params: Json) -> Json:
    try:
        return peer.call(method, params)
    except RemoteError as error:
        return error.message


def test_a_holder_does_what_the_token_allows(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    token = desk.issue(*caveats(label="ci", roots=[os.fsencode(tmp_path.resolve() / "in")], network=False))
    peer, _ = desk.connect(token)
    with peer:
        found = run(peer, "p", f"echo a > {tmp_path}/in/a; echo b > {tmp_path}/b; echo done")
        assert found.stdout == b"done\n"
        assert b"Read-only file system" in found.stderr
        listed = peer.call("process/list")
        assert listed["identity"] == {"way": "token", "name": f"{token.id} ci"}
        with pytest.raises(RemoteError, match="needs the network"):
            peer.call("http/request", {"requestId": "r", "method": "GET", "url": "http://x/", "headers": []})
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "in"]


def test_a_narrowed_token_does_less_and_no_changed_one_gets_in(desk: Desk, tmp_path: Path) -> None:
    token = desk.issue(*caveats(roots=[os.fsencode(tmp_path.resolve())]))
    reader = narrowed(token, caveats(read_only=True))
    data = base64.b64encode(b"x").decode()
    path = f"file://{tmp_path.resolve()}/f"
    for each, expected in ((reader, False), (token, True)):
        peer, _ = desk.connect(each)
        with peer:
            assert (tried(peer, "fs/writeFile", path=path, dataBase64=data) == {}) == expected
    for changed in (
        reader._replace(caveats=token.caveats),
        reader._replace(caveats=reader.caveats[::-1]),
        reader._replace(caveats=()),
        token._replace(caveats=caveats(roots=[b"/"])),
        token._replace(id=desk.issue().id),
    ):
        assert desk.refuses(changed)


def test_a_revoked_token_is_refused_also_where_it_is_in_already(desk: Desk) -> None:
    token = desk.issue()
    less = narrowed(token, ["n"])
    peer, _ = desk.connect(token)
    with peer:
        start(peer, "p", ["sleep", "1000"])
        store.revoke(desk.folder, token.id, time.time())
        # Refused, or the connection has been closed meanwhile.
        with pytest.raises((RemoteError, PeerClosed), match=r"invalid execserver token|the connection ended"):
            start(peer, "q", ["true"])
    assert desk.refuses(token)
    assert desk.refuses(less)


def test_who_is_connected_with_a_revoked_token_is_disconnected(desk: Desk) -> None:
    token = desk.issue()
    peer, session = desk.connect(token)
    store.revoke(desk.folder, token.id, time.time())
    with peer:
        peer.wait_for_end()
        assert peer.close_code == POLICY_VIOLATION
    with pytest.raises(ProtocolFault, match="401"):
        desk.connect(token, session)


def test_a_session_belongs_to_the_token_that_opened_it(desk: Desk) -> None:
    """Through a narrower token nobody comes to a shell that was started with the wider one."""
    token = desk.issue("l-a")
    peer, session = desk.connect(token)
    with peer:
        start(peer, "p", ["cat"], pipeStdin=True)
    for other in (narrowed(token, ["r"]), narrowed(token, ["l-b"]), desk.issue("l-a")):
        with pytest.raises(RemoteError, match=f"unknown session id {session}"):
            desk.connect(other, session)
    again, resumed = desk.connect(token, session)
    with again:
        assert resumed == session
        assert again.call("process/terminate", {"processId": "p"}) == {"running": True}


def test_no_command_comes_to_the_list(desk: Desk) -> None:
    """A token without limits is another matter: its holder is the user."""
    token = desk.issue("n")
    file = os.fsdecode(desk.folder) + "/tokens.json"
    peer, _ = desk.connect(token)
    with peer:
        found = run(peer, "p", f"cat {file}; cat {file} < /dev/null; echo done")
        assert found.stdout == b"done\n"
        assert tried(peer, "fs/readFile", path=f"file://{file}") == "Permission denied (os error 13)"


def test_without_a_list_the_server_does_not_start(tmp_path: Path) -> None:
    env = {**base_environment(), **own_cache(), "HOME": str(tmp_path)}
    with pytest.raises(AssertionError, match="make a first token: execserver token new"):
        ServerProcess(OURS, options=MODE, env=env, cwd=ROOT)


def test_no_other_option_goes_with_it(tmp_path: Path) -> None:
    env = {**base_environment(), **own_cache(), "HOME": str(tmp_path)}
    with pytest.raises(AssertionError, match="takes no other websocket auth flags"):
        ServerProcess(OURS, options=(*MODE, "--ws-token-sha256", "0" * 64), env=env, cwd=ROOT)
