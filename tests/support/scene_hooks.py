"""Small stage directions that several scenes are made of."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.accounts import home
from tests.support.replay import Replay
from tests.support.scene import Hook
from tests.support.ws_peer import WsPeer

SHORT_WAIT = 60.0


def pause(seconds: float) -> Hook:
    """Return a hook that lets the recorded time go by, where it is part of what was recorded."""
    return lambda replay: time.sleep(seconds)


def wait_for(conn: str, process_id: str, method: str) -> Hook:
    """Return a hook that waits for a notification the recording shows only after the next request."""

    def hook(replay: Replay) -> None:
        live = replay.connections[conn]
        assert live.wait(lambda: live.has(method, process_id)), f"no {method} of {process_id}"

    return hook


def close(conn: str) -> Hook:
    """Return a hook that drops a connection as the real client does."""

    def hook(replay: Replay) -> None:
        replay.connections[conn].peer.close()
        replay.connections[conn].ended = True

    return hook


def both(*hooks: Hook) -> Hook:
    """Return a hook that runs several in turn."""

    def hook(replay: Replay) -> None:
        for one in hooks:
            one(replay)

    return hook


def websocket(replay: Replay, conn: str) -> WsPeer:
    """Return a connection's peer; the scene that asks plays over WebSocket only."""
    peer = replay.connection(conn).peer
    assert isinstance(peer, WsPeer)
    return peer


def common_values(tmp: Path) -> dict[str, str]:
    """Return the values every transcript may need."""
    return {
        "TMP": str(tmp),
        "HOME": home(),
        "CUT": "",
    }


def void(value: object) -> None:
    """Drop a value: hooks return nothing."""
