"""The surroundings of the transcripts about processes and sessions."""

from __future__ import annotations

import base64
import re
import signal
import time
from pathlib import Path

from tests.support.accounts import account_home, home
from tests.support.replay import Replay
from tests.support.scene import Scene
from tests.support.scene_files import build_start_files
from tests.support.scene_hooks import SHORT_WAIT, both, close, common_values, pause, wait_for


def process_start(tmp: Path) -> Scene:
    """Programs that can't be run, and a server with a known environment."""
    build_start_files(tmp)
    # Programs on a terminal start in the account's home when their folder is missing, whatever HOME says.
    return Scene(common_values(tmp) | {"HOME": account_home() or home()})


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
