"""What each transcript takes for granted: files, environment, and what the recorder did between the messages.

`SCENES` maps a transcript's name (without version) to a function that builds its surroundings in a fresh
folder and returns the `Scene`. Notes of the recording that describe an action are carried out here, and
numbers they mention are checked where they are part of the contract.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from tests.support.peer import RemoteError
from tests.support.replay import Replay
from tests.support.scene import Hook, Scene
from tests.support.scene_files import build_fs_tree, build_walk_tree, set_times
from tests.support.scene_hooks import common_values, void, websocket
from tests.support.scenes_process import misc, process_io, process_start, session
from tests.support.ws_peer import CLOSE, PING, PONG, TEXT

LONG_PATH = "file:///a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/{CUT: 4148 more characters}"


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


def sandbox(tmp: Path) -> Scene:
    """A workspace, a folder beside it, and a file in each."""
    for name, text in (("ws", "in"), ("other", "out")):
        (tmp / name).mkdir()
        (tmp / name / "f").write_text(text)

    def environment(got: bytes) -> bool:
        """Check what precedes the command line of the parent process, which is not the contract's."""
        return got.startswith(f"PATH=/usr/bin:/bin\nPWD={tmp}/ws\n".encode())

    return Scene(common_values(tmp) | {"ROOT": str(tmp)}, varying={"a:p17": environment})


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
            try:
                got = str(peer.call("fs/canonicalize", {"path": f"file://h/n{character}n"}))
            except RemoteError as raised:
                got = raised.message
            if got != text:
                replay.failures.append(f"the URI with {character!r} gave {got}")

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
    "09-sandbox": sandbox,
    "07-http": http,
    "10-beyond-target": beyond,
    "11-misc": misc,
    "12-percent-encoding": percent_encoding,
    "13-decode-errors": plain,
    "15-check-order": plain,
}
