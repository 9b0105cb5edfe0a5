"""A server with `--ws-auth`, known only from outside: the recorded requests, and a session behind a token."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.peer import ProtocolFault
from tests.support.raw_http import RawHttp
from tests.support.server_process import OURS, ServerProcess
from tests.support.ws_auth import HEADER, SECRET, UPGRADE, sign
from tests.support.ws_auth_play import play_cases
from tests.support.ws_peer import WsPeer

ROOT = Path(__file__).resolve().parents[2]


def test_the_recorded_requests_have_their_recorded_answers(tmp_path: Path) -> None:
    assert play_cases(OURS, tmp_path, ROOT) == []


def test_a_session_opens_with_the_token_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    options = ("--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", str(tmp_path / "secret"))
    with ServerProcess(OURS, options=options, cwd=ROOT) as server:
        token = sign(HEADER, {"exp": int(time.time()) + 600, "sub": "ada"})
        peer = WsPeer.connect(server.url, headers=[f"Authorization: Bearer {token}"])
        peer.open_session()
        peer.close()
        with pytest.raises(ProtocolFault, match="401"):
            WsPeer.connect(server.url)
        assert token not in server.errors()


def test_a_refused_peer_may_ask_again_on_its_connection(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("right")
    options = ("--ws-auth", "capability-token", "--ws-token-file", str(tmp_path / "token"))
    request = f"GET / HTTP/1.1\n{UPGRADE}\nAuthorization: Bearer "
    with ServerProcess(OURS, options=options, cwd=ROOT) as server, RawHttp(server.url) as connection:
        for _ in range(3):
            assert connection.ask(request + "wrong").status == 401
        assert connection.ask("GET /readyz HTTP/1.1").status == 200
        assert connection.ask(request + "right").status == 101


def test_a_page_whose_name_leads_here_is_refused(tmp_path: Path) -> None:
    with ServerProcess(OURS, cwd=ROOT) as server, RawHttp(server.url) as connection:
        refused = connection.ask(f"GET / HTTP/1.1\nHost: evil.example\n{UPGRADE}")
        assert (refused.status, b"Host must be" in refused.body) == (403, True)
        assert connection.ask("GET /readyz HTTP/1.1\nHost: evil.example").status == 200
        assert connection.ask(f"GET / HTTP/1.1\nHost: localhost:4567\n{UPGRADE}").status == 101
