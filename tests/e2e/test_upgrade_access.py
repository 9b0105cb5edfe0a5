"""What holds clients and commands back holds on over an upgrade: tokens and the rules for the network."""

from __future__ import annotations

import os
import signal
import socket
import time
from itertools import count
from pathlib import Path

import pytest

from execserver.access.tokens import store
from execserver.access.tokens.caveats import caveats
from execserver.access.tokens.chain import Token
from execserver.runtime_paths import token_stores
from tests.support.accounts import own_cache
from tests.support.peer import ProtocolFault, RemoteError
from tests.support.running import PATH, output_until, run, start, terminate, write
from tests.support.server_process import ServerProcess, base_environment
from tests.support.source import ROOT
from tests.support.upgrades import upgrade, upgraded
from tests.support.ws_peer import WsPeer

POLICY_VIOLATION = 1008
# Asks for what each line of its input names, through the proxy that it has, and past it.
ASKS = """
import os, socket, urllib.parse
place = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])
print("begun", flush=True)
while line := input():
    host, port = line.split()
    sock = socket.create_connection((place.hostname, place.port))
    sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\n\\r\\n".encode())
    direct = socket.socket().connect_ex((host, int(port))) if host[0].isdigit() else None
    print(sock.recv(12).decode(), "direct" if direct == 0 else "held", flush=True)
"""


def connected(server: ServerProcess, token: Token, resume: str | None = None) -> tuple[WsPeer, str]:
    peer = WsPeer.connect(server.url, headers=[f"Authorization: Bearer {token.text}"])
    try:
        return peer, peer.open_session(resume)
    except BaseException:
        peer.close()
        raise


def test_who_came_with_a_token_may_do_no_more_and_no_less(tmp_path: Path) -> None:
    home, inside = tmp_path / "home", tmp_path.resolve() / "in"
    inside.mkdir()
    folder = token_stores({b"HOME": os.fsencode(home)})[0]
    limited = store.issue(
        folder, caveats(label="ci", roots=[os.fsencode(inside)], network=False), time.time()
    )
    other = store.issue(folder, ("l-other",), time.time())
    env = {**base_environment(), **own_cache(), "HOME": str(home)}
    with ServerProcess(options=("--ws-auth", "execserver-token"), env=env, cwd=ROOT) as server:
        peer, session = connected(server, limited)
        gone, detached = connected(server, other)
        gone.close()
        start(peer, "p", "cat", pipeStdin=True)
        for _ in range(2):
            upgraded(server)
        assert write(peer, "p", b"still here\n", "w") == "accepted"
        assert output_until(peer, "p", b"\n") == b"still here\n"
        assert peer.call("process/list")["identity"] == {"way": "token", "name": f"{limited.id} ci"}
        found = run(peer, "q", f"echo a > {inside}/a; echo b > {tmp_path}/b; echo done")
        assert found.stdout == b"done\n"
        assert b"Read-only file system" in found.stderr
        assert not (tmp_path / "b").exists()
        with pytest.raises(RemoteError, match="needs the network"):
            peer.call("http/request", {"requestId": "r", "method": "GET", "url": "http://x/", "headers": []})
        with pytest.raises(RemoteError, match=f"unknown session id {session}"):
            connected(server, other, session)
        with pytest.raises(RemoteError, match=f"unknown session id {detached}"):
            connected(server, limited, detached)
        again, resumed = connected(server, other, detached)
        again.close()
        assert resumed == detached
        store.revoke(folder, limited.id, time.time())
        with peer:
            peer.wait_for_end()
            assert peer.close_code == POLICY_VIOLATION
        with pytest.raises(ProtocolFault, match="401"):
            connected(server, limited, session)


def test_a_token_that_lapses_while_a_server_is_upgraded_is_worth_nothing_behind_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = token_stores({b"HOME": os.fsencode(home)})[0]
    token = store.issue(folder, ("l-a",), time.time())
    env = {**base_environment(), **own_cache(), "HOME": str(home)}
    with ServerProcess(options=("--ws-auth", "execserver-token"), env=env, cwd=ROOT) as server:
        peer, _ = connected(server, token)
        os.kill(server.pid, signal.SIGSTOP)  # so that it can notice in its next life only
        store.revoke(folder, token.id, time.time())
        os.kill(server.pid, signal.SIGCONT)
        upgraded(server)
        with peer:
            peer.wait_for_end()
            assert peer.close_code == POLICY_VIOLATION


def test_the_rules_for_the_network_hold_on_for_what_runs(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        rules.write_text(f'allow = ["https://127.0.0.1:{port}"]\n')
        with ServerProcess(options=("--network-rules", str(rules))) as server, server.connect() as peer:
            peer.open_session()
            start(peer, "p", ["python3", "-u", "-c", ASKS], env=PATH, pipeStdin=True)
            output_until(peer, "p", b"begun\n")
            ids = (f"w{number}" for number in count())

            def asked(host: str, at: int) -> bytes:
                assert write(peer, "p", f"{host} {at}\n".encode(), next(ids)) == "accepted"
                return output_until(peer, "p", b"\n")

            assert asked("127.0.0.1", port) == b"HTTP/1.1 200 held\n"
            upgraded(server)
            assert asked("127.0.0.1", port) == b"HTTP/1.1 200 held\n"
            assert asked("other.example", 443) == b"HTTP/1.1 403 held\n"
            rules.write_text("allow = 7\n")
            refused = upgrade(server)
            assert (refused.returncode, "cannot take over" in refused.stderr) == (1, True)
            assert asked("127.0.0.1", port) == b"HTTP/1.1 200 held\n"
            rules.write_text("allow = []\n")
            upgraded(server)
            assert asked("127.0.0.1", port) == b"HTTP/1.1 403 held\n"
            assert terminate(peer, "p")
