"""What each transcript takes for granted: files, environment, and what the recorder did between the messages.

`SCENES` maps a transcript's name (without version) to a function that builds its surroundings in a fresh
folder and returns the `Scene`. Notes of the recording that describe an action are carried out here, and
numbers they mention are checked where they are part of the contract.
"""

from __future__ import annotations

import base64
import os
import pwd
import re
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.peer import RemoteError
from tests.support.replay import Replay
from tests.support.scene import Hook, Scene
from tests.support.scene_files import build_fs_tree, build_start_files, build_walk_tree, set_times
from tests.support.ws_peer import CLOSE, PING, PONG, TEXT, WsPeer

LONG_PATH = "file:///a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/{CUT: 4148 more characters}"
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
        "HOME": pwd.getpwuid(os.getuid()).pw_dir,
        "CUT": "",
    }


def plain(tmp: Path) -> Scene:
    """A transcript that needs nothing but a server."""
    return Scene(common_values(tmp))


def framing(tmp: Path) -> Scene:
    """Bytes that no JSON message can show: bad UTF-8, a ping, fragments, the client's Close."""

    def ping(replay: Replay) -> None:
        peer = websocket(replay, "a+")
        peer.send_frame(PING, b"are you there")
        for _ in range(20):  # a pong need not come before the replies to later requests
            if any(frame.opcode == PONG for frame in peer.control):
                break
            peer.call("environment/info")
        pongs = [frame.payload for frame in peer.control if frame.opcode == PONG]
        if pongs != [b"are you there"]:
            replay.failures.append(f"pongs: {pongs}")

    def bad_text(replay: Replay) -> None:
        websocket(replay, "u").send_frame(TEXT, b'{"id":1,"method":"\xff\xfe"}')

    def fragments(replay: Replay) -> None:
        text = b'{"id":5,"method":"environment/info"}'
        websocket(replay, "frag").send_fragments([text[:10], text[10:]])

    return Scene(
        common_values(tmp),
        at_note={
            "connection was closed by the server": lambda replay: void(replay.reconnect("a+")),
            "client ping": ping,
            "two fragments": fragments,
            "close handshake": lambda replay: websocket(replay, "frag").send_frame(CLOSE, b"\x03\xe8"),
        },
        before_end={"u": bad_text},
        binary={"\ufffd\ufffd": b"\xff\xfe"},
    )


def void(value: object) -> None:
    """Drop a value: hooks return nothing."""


def process_start(tmp: Path) -> Scene:
    """Programs that can't be run, and a server with a known environment."""
    build_start_files(tmp)
    return Scene(common_values(tmp))


START_ENVIRONMENT = {
    "API_TOKEN": "t",
    "Db_Secret": "x",
    "FOO": "bar",
    "LANG": "C.UTF-8",
    "MY_KEY": "k",
    "SHELL": "/bin/bash",
    "TERM": "xterm-foo",
    "USER": "root",
}


def process_io(tmp: Path) -> Scene:
    """Waits where the recorder waited, and the summary of big outputs done again."""
    line = b"yyyyyyyyyyyyyyyyyyyyyyyyyyyy\n"
    text = base64.b64encode(b"x" * 200_000).decode()
    return Scene(
        common_values(tmp),
        before={
            "a:30": wait_for("a", "p17", "process/output"),
            "a:78": pause(0.3),
            "a:80": pause(0.3),
            "a:113": wait_for("a", "p48", "process/exited"),
            "a:117": wait_for("a", "p49", "process/exited"),
        },
        at_note={'{"cmd"': big_output},
        varying={"a:p17": lambda got: got.count(line) > 0 and got.replace(line, b"") == b""},
        racy=frozenset({"a:106", "a:107", "a:114", "a:9002"}),
        cuts={text[:40] + "{CUT: 266628 more base64 characters}": text},
    )


def big_output(replay: Replay) -> None:
    """Run the summarised command again and compare what is independent of timing."""
    number = replay.big_outputs = replay.big_outputs + 1
    note = replay.summaries[number - 1]
    conn = replay.connection("a")
    process_id = f"big{number}"
    argv = ["sh", "-c", note["cmd"]]
    start = {"processId": process_id, "argv": argv, "cwd": "file:///", "tty": note["tty"]}
    conn.peer.send(
        {"id": process_id, "method": "process/start", "params": {**start, "env": {"PATH": "/bin:/usr/bin"}}}
    )
    if not conn.wait(lambda: conn.has("process/closed", process_id), SHORT_WAIT):
        replay.failures.append(f"{process_id} did not close")
        return
    sizes = {name: len(conn.output(process_id, name)) for name in ("stdout", "stderr", "pty")}
    last = max(params["seq"] for _, params in conn.of("processId", process_id))
    conn.peer.send({"id": "read", "method": "process/read", "params": {"processId": process_id}})
    conn.wait(lambda: any(reply["id"] == "read" for reply in conn.replies))
    read = next(reply for reply in conn.replies if reply["id"] == "read")["result"]
    conn.replies.clear()
    kept = sum(len(base64.b64decode(chunk["chunk"])) for chunk in read["chunks"])
    wanted_kept = min(note["bytes"], 1_048_576)
    if sum(sizes.values()) != note["bytes"] or read["nextSeq"] != last + 1:
        replay.failures.append(f"{note}: {sizes} bytes, last seq {last}, nextSeq {read['nextSeq']}")
    if not wanted_kept - 65_536 <= kept <= wanted_kept:
        replay.failures.append(f"{note}: {kept} bytes retained")


def session(tmp: Path) -> Scene:
    """Drops, resumes, and the two waiting times."""

    def wait_until_dead(replay: Replay) -> None:
        pid = int((tmp / "pid").read_text())
        close("g")(replay)
        deadline = time.monotonic() + SHORT_WAIT
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, "the process of a detached session lives on"
            time.sleep(0.05)

    def wait_until_forgotten(replay: Replay) -> None:
        conn = replay.connections["h"]
        deadline = time.monotonic() + SHORT_WAIT
        while time.monotonic() < deadline:
            conn.peer.send({"id": "poll", "method": "process/read", "params": {"processId": "ret"}})
            conn.wait(lambda: any(reply["id"] == "poll" for reply in conn.replies))
            reply = conn.replies.pop()
            if "error" in reply:
                return
            time.sleep(0.1)
        replay.failures.append("a closed process was never forgotten")

    def ticks(got: bytes) -> bool:
        numbers = [int(number) for number in re.findall(rb"tick(\d+)\n", got)]
        return numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True

    def wait_for_pid(replay: Replay) -> None:
        deadline = time.monotonic() + SHORT_WAIT
        while not (tmp / "pid").exists() or not (tmp / "pid").read_text().strip():
            assert time.monotonic() < deadline, "no pid file"
            time.sleep(0.02)

    return Scene(
        common_values(tmp),
        before={
            "d:1": close("c"),
            "e:1": both(close("d"), pause(2.0)),
            "g:1": both(pause(0.2), close("e")),
            "h:303": wait_until_forgotten,
        },
        at_note={
            "disconnect without close frame": both(close("a"), pause(1.6)),
            "detached session": both(wait_for_pid, wait_until_dead),
        },
        client_closes={"b": close("b")},
        varying={"a:live": ticks, "c:live": ticks},
    )


def fs(tmp: Path) -> Scene:
    """A tree with every kind of file, changed between the calls as the recorder did."""
    build_fs_tree(tmp)

    def check_mode(path: str, *, parent: bool = False) -> Callable[[int], Hook]:
        def check(wanted: int) -> Hook:
            def hook(replay: Replay) -> None:
                mode = stat.S_IMODE((tmp / path).stat().st_mode)
                if mode != wanted:
                    replay.failures.append(f"{path} has mode {mode:o} instead of {wanted:o}")

            return hook

        return check

    def handles(replay: Replay, method: str, numbers: range) -> None:
        peer = replay.connections["a"].peer
        for number in numbers:
            params = {"handleId": f"k{number}"} | (
                {"path": f"file://{tmp}/f.txt"} if method == "fs/open" else {}
            )
            peer.send({"id": f"{method} {number}", "method": method, "params": params})
        conn = replay.connections["a"]
        conn.wait(lambda: len(conn.replies) == len(numbers))
        if any("error" in reply for reply in conn.replies):
            replay.failures.append(f"{method}: {conn.replies}")
        conn.replies.clear()

    def no_fifo_copied(replay: Replay) -> None:
        names = os.listdir(tmp / "d5")
        if names:
            replay.failures.append(f"copied tree holds {names}")

    path = LONG_PATH.partition("{")[0]
    return Scene(
        common_values(tmp),
        before={
            "a:58": lambda replay: (tmp / "tmpf").unlink(),
            "a:325": lambda replay: (tmp / "nowhere").unlink(),
            "a:187": lambda replay: handles(replay, "fs/open", range(127)),
            "a:317": lambda replay: handles(replay, "fs/close", range(128)),
        },
        at_note={
            "mode of a new file": check_mode("n.txt")(0o644),
            "mode of a new directory": check_mode("c1")(0o755),
            "f.txt mtime": lambda replay: set_times(tmp),
            "copy": lambda replay: (tmp / "l-dir").symlink_to("d"),
            "mode is copied": check_mode("modecopy")(0o640),
            "mode of a copied 0700": check_mode("d4")(0o755),
            "fifo inside": no_fifo_copied,
        },
        cuts={LONG_PATH: path + "a/" * ((4148 + 28) // 2)},
    )


def http(tmp: Path) -> Scene:
    """The caller adds HTTP_PORT and SERVER."""
    return Scene(common_values(tmp), varying={"a:http s5": lambda got: True})


def misc(tmp: Path) -> Scene:
    """A script that appears midway, a linked folder, and the end of the server."""
    (tmp / "real").mkdir()
    (tmp / "lnk").symlink_to("real")

    def make_script(replay: Replay) -> None:
        (tmp / "x").write_text("#!/bin/sh\necho x-ran $0\n")
        (tmp / "x").chmod(0o755)

    def nesting(replay: Replay) -> None:
        conn = replay.connections["a"]
        for depth, wanted in ((127, -32600), (126, -32601)):
            conn.peer.send_text(f'{{"id":1,"method":"no/such","params":{"[" * depth}{"]" * depth}}}')
            conn.wait(lambda: bool(conn.replies))
            reply = conn.replies.pop()
            if reply["error"]["code"] != wanted:
                replay.failures.append(f"{depth} nested arrays: {reply}")

    return Scene(
        common_values(tmp),
        before={"a:16": make_script},
        at_note={"deep nesting": nesting},
        before_end={"a": lambda replay: end_server(replay, tmp)},
    )


def end_server(replay: Replay, tmp: Path) -> None:
    """Wait for the four children of the last act, then ask the server to end."""
    deadline = time.monotonic() + SHORT_WAIT
    files = [tmp / f"pids{number}" for number in range(1, 5)]
    while not all(file.exists() and file.read_text().strip() for file in files):
        assert time.monotonic() < deadline, "the children did not start"
        time.sleep(0.02)
    replay.stage.signal(signal.SIGTERM)


def percent_encoding(tmp: Path) -> Scene:
    """Every character the notes list, in a file's name and in a URI."""

    def names(replay: Replay) -> None:
        peer = replay.reconnect("a").peer
        for character, wanted in replay.characters("result paths").items():
            (tmp / f"n{character}n").write_text("")
            got = peer.call("fs/canonicalize", {"path": f"{tmp}/n{character}n"})["path"]
            if got != f"file://{tmp}/n{wanted}n":
                replay.failures.append(f"the name with {character!r} became {got}")

    def uris(replay: Replay) -> None:
        peer = replay.reconnect("a").peer
        for character, wanted in replay.characters("raw character inside a file: URI").items():
            text = wanted.removeprefix("ERR ")
            if text == wanted:
                text = f"'file://h/n{wanted}n' is invalid on 'linux'"
            with pytest.raises(RemoteError) as raised:
                peer.call("fs/canonicalize", {"path": f"file://h/n{character}n"})
            if raised.value.message != text:
                replay.failures.append(f"the URI with {character!r} gave {raised.value.message}")

    notes: dict[str, Hook] = {
        "result paths: characters encoded": names,
        "raw character inside a file: URI, changed": uris,
    }
    return Scene(common_values(tmp), at_note=notes)


def beyond(tmp: Path) -> Scene:
    """The tree that fs/walk walked."""
    build_walk_tree(tmp)
    return Scene(common_values(tmp))


SCENES: dict[str, Callable[[Path], Scene]] = {
    "01-lifecycle": plain,
    "02-framing": framing,
    "03-process-start": process_start,
    "04-process-io": process_io,
    "05-session": session,
    "06-fs": fs,
    "07-http": http,
    "10-beyond-target": beyond,
    "11-misc": misc,
    "12-percent-encoding": percent_encoding,
    "13-decode-errors": plain,
    "15-check-order": plain,
}
