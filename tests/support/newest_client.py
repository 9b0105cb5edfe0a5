"""Plays what the newest client asked its own server, whole conversations, against a server.

A recording has no list of the files that were there.  Each is made when the recorded answers first tell of
it, just before the request that they answer, and what a watch waits for just before its notification.  The
programs and the HTTP server of a recording are replaced by some that say what the recorded ones said.

Answers are found by their id, since the client pipelines; chunks of output and of bodies are put together.
What the server asks is answered as recorded, once it was asked.
"""

from __future__ import annotations

import base64
import json
import socket
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.newest import lines_of
from tests.support.peer import Json, Peer

Plain = Callable[[bytes], Any]
THREAD = "3b241101-e2bb-4255-8caf-4136c566a962"
SAYING = """\
import sys
said = {said!r}
for number, line in enumerate(sys.stdin):
    for stream, text in said[number] if number < len(said) else []:
        print(text, end="", flush=True, file=getattr(sys, stream))
"""
TIMES = ("createdAtMs", "modifiedAtMs")


def conversation(name: str, root: Path, port: int = 0) -> list[dict[str, Any]]:
    """Return the messages of a recording, with this run's folders, port and ids in them."""
    text = json.dumps([line for line in lines_of(name, root) if "msg" in line and line["dir"] != "#"])
    for number, folder in enumerate(root.parents[:4], 1):
        text = text.replace(f"/ANCESTOR{number}", str(folder))
    text = text.replace("127.0.0.1:PORT", f"127.0.0.1:{port}").replace(
        '"threadId": "UUID"', f'"threadId": "{THREAD}"'
    )
    found: list[dict[str, Any]] = json.loads(text)
    return found


class Recording:
    """What a recording says, by request: answers, and what came of processes and of HTTP requests."""

    def __init__(self, lines: list[dict[str, Any]], root: Path) -> None:
        self.lines = lines
        self.answers = {
            line["msg"]["id"]: line["msg"] for line in lines if line["dir"] == "<" and is_answer(line["msg"])
        }
        self.asked = [line["msg"] for line in lines if line["dir"] == ">" and is_request(line["msg"])]
        self.contents = {
            each["params"]["path"]: base64.b64decode(self.answers[each["id"]]["result"]["dataBase64"])
            for each in self.asked
            if each["method"] == "fs/readFile" and "result" in self.answers[each["id"]]
        }
        told = grouped([line["msg"] for line in lines if line["dir"] == "<"])
        self.grouped = {
            name: what.replace(b"/ROOT", bytes(root)) if isinstance(what, bytes) else what
            for name, what in told.items()
        }

    def said(self, process_id: str) -> list[list[tuple[str, str]]]:
        """Return what a process wrote after each line of its input."""
        said: list[list[tuple[str, str]]] = []
        for line in self.lines:
            params = line["msg"].get("params") or {}
            if params.get("processId") != process_id:
                continue
            if line["msg"]["method"] == "process/write":
                said.append([])
            elif line["msg"]["method"] == "process/output" and said:
                said[-1].append((params["stream"], base64.b64decode(params["chunk"]).decode()))
        return said


def is_request(message: dict[str, Any]) -> bool:
    """Tell whether a message wants an answer; both sides ask."""
    return "id" in message and "method" in message


def is_answer(message: dict[str, Any]) -> bool:
    """Tell whether a message answers one of the other side."""
    return "id" in message and "method" not in message


def grouped(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is told, put together: by process and stream, and by HTTP request."""
    found: dict[str, Any] = defaultdict(bytes)
    for message in messages:
        params, method = message.get("params") or {}, message.get("method")
        if method == "process/output":
            found[f"{params['processId']} {params['stream']}"] += base64.b64decode(params["chunk"])
        elif method == "process/exited":
            found[f"{params['processId']} exit"] = params["exitCode"]
        elif method == "network/policyRequest":
            found.setdefault("questions", []).append((message["id"], params["request"]))
        elif method == "network/policyDecision":
            fixed = {name: value for name, value in params.items() if name not in ("timestamp", "client")}
            found.setdefault("decisions", []).append(fixed)
        elif method == "http/request/bodyDelta":
            found[params["requestId"]] += base64.b64decode(params["deltaBase64"])
            if params["done"]:
                found[f"{params['requestId']} error"] = params["error"]
    return dict(found)


class ClientReplay:
    """One conversation with a server, over an open peer."""

    def __init__(self, peer: Peer, recording: Recording, plain: Plain = lambda output: output) -> None:
        """`plain` returns output without what differs between machines and runs."""
        self._peer = peer
        self._plain = plain
        self._recording = recording
        self._got: dict[Any, dict[str, Any]] = {}
        self._told: list[dict[str, Any]] = []
        self._watched: list[str] = []
        self._expected: dict[str, int] = defaultdict(int)  # bytes of output, by process and stream
        self._terminated: set[str] = set()
        self._racing: set[Any] = set()  # a second `terminate`, whose answer depends on the moment

    def run(self) -> list[str]:
        """Play it; return what differed."""
        failures = []
        for line in self._recording.lines:
            message = line["msg"]
            if line["dir"] == ">" and is_answer(message):
                self._until(lambda asked=message["id"]: asked in self._questions())
                self._peer.send(message)
            elif line["dir"] == ">":
                self._send(message)
            elif is_answer(message):
                failures += self._compare(message)
            else:
                self._take_notification(message)
        self._until(lambda: self._is_all_told())
        got = grouped(self._told)
        return failures + [
            f"{name}: {got.get(name)!r} instead of {what!r}"
            for name, what in self._recording.grouped.items()
            if self._shown(got.get(name)) != self._shown(what)
        ]

    def _shown(self, what: Json) -> Json:
        return self._plain(what) if isinstance(what, bytes) else what

    def _questions(self) -> set[Any]:
        return {each["id"] for each in self._told if is_request(each)}

    def _take_notification(self, wanted: dict[str, Any]) -> None:
        """Wait for what was told at this place; what was told in pieces may come in others."""
        method, params = wanted["method"], wanted["params"]
        if method == "fs/missingChanged":
            self._let_appear()
            self._until(lambda: wanted in self._told)
        elif method in ("process/exited", "process/closed"):
            self._until(lambda: (method, params["processId"]) in self._ends())
        elif method == "process/output":
            name = f"{params['processId']} {params['stream']}"
            self._expected[name] += len(base64.b64decode(params["chunk"]))
            wanted_bytes = min(self._expected[name], len(self._recording.grouped[name]))
            ended = ("process/closed", params["processId"])  # what is not plain may be shorter
            self._until(
                lambda: len(grouped(self._told).get(name, b"")) >= wanted_bytes or ended in self._ends()
            )

    def _ends(self) -> set[tuple[str, str]]:
        return {(each["method"], each["params"].get("processId", "")) for each in self._told}

    def _send(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params") or {}
        if "id" in message:
            self._prepare(method, params, self._recording.answers[message["id"]])
        if method == "http/request":
            message = {**message, "params": {**params, "url": f"{params['url']}?{message['id']}"}}
        if method == "fs/watchMissing":
            self._watched = params["missing"]
        if method == "process/terminate":
            if params["processId"] in self._terminated:
                self._racing.add(message["id"])
            self._terminated.add(params["processId"])
        self._peer.send(message)

    def _prepare(self, method: str, params: Json, answer: dict[str, Any]) -> None:
        """Make what the answer to a request will tell of."""
        result = answer.get("result")
        if result is None:
            return
        if method == "fs/getMetadata":
            self._make(params["path"], is_directory=result["isDirectory"], size=result["size"])
        elif method == "fs/readFile":
            self._make(params["path"], is_directory=False)
        elif method == "fs/walk":
            for entry in result["entries"]:
                self._make(entry["path"], is_directory=entry["kind"] == "directory")
        elif method == "environmentConfig/read":
            for layer in result["config"]["layers"]:
                write(f"{layer['baseDir']}/config.toml", layer["toml"].encode())
        elif method in ("capabilities/discoverV2", "capabilityRoots/discoverV1"):
            make_files(result)
        elif method == "process/start" and params["argv"][-1].endswith("srv.py"):
            said = self._recording.said(params["processId"])
            place = Path(params["cwd"].removeprefix("file://"), params["argv"][-1])
            write(str(place), SAYING.format(said=said).encode())

    def _make(self, uri: str, *, is_directory: bool, size: int = 0) -> None:
        path = Path(uri.removeprefix("file://"))
        if path.exists():
            return
        if is_directory:
            path.mkdir(parents=True)
        else:
            write(uri, self._recording.contents.get(uri, b"x" * size))

    def _let_appear(self) -> None:
        """Make the watched paths that are there later."""
        for asked in self._recording.asked:
            answer = self._recording.answers[asked["id"]]
            if asked["method"] == "fs/getMetadata" and asked["params"]["path"] in self._watched:
                self._prepare("fs/getMetadata", asked["params"], answer)

    def _until(self, condition: Any) -> None:
        while not condition():
            message = self._peer.receive()
            assert message is not None, "the server ended"
            if is_answer(message):
                self._got[message["id"]] = message
            else:
                self._told.append(message)

    def _is_all_told(self) -> bool:
        told = [message["method"] for message in self._told]
        wanted = [line["msg"].get("method") for line in self._recording.lines if line["dir"] == "<"]
        ends = ("process/closed", "process/exited")
        if any(told.count(each) < wanted.count(each) for each in ends):
            return False
        done = [message["params"]["requestId"] for message in self._told if message["params"].get("done")]
        return len(done) >= sum(name.endswith(" error") for name in self._recording.grouped)

    def _compare(self, wanted: dict[str, Any]) -> list[str]:
        self._until(lambda: wanted["id"] in self._got)
        got = self._got[wanted["id"]]
        if "sessionId" in wanted.get("result", {}) or wanted["id"] in self._racing:
            return []
        one, other = _comparable(got, wanted), _comparable(wanted, wanted)
        return (
            [] if one == other else [f"{wanted['id']}: {json.dumps(one)}\n instead of\n{json.dumps(other)}"]
        )


def _comparable(message: dict[str, Any], wanted: dict[str, Any]) -> Json:
    """Return an answer without what depends on time and machine, and without members of our own."""
    if "result" not in message:
        return {"code": message["error"]["code"], "message": message["error"]["message"]}
    result = message["result"]
    left_out = [*TIMES, *(["size"] if result.get("isDirectory") else [])]
    known = wanted.get("result", {})
    shown = {name: value for name, value in result.items() if name in known and name not in left_out}
    for name, value in known.items():
        if str(value).startswith("{CUT: ") and name in shown and shown[name] != value:
            shown[name] = f"{{CUT: {len(shown[name])} characters of base64}}"
    if shown.get("hostname") == socket.gethostname():
        shown["hostname"] = "HOST"
    return shown


def make_files(answer: Json) -> None:
    """Make the files that an answer tells of: those with their contents, and skills by what they say."""
    if isinstance(answer, list):
        for each in answer:
            make_files(each)
    elif isinstance(answer, dict):
        if "contents" in answer:
            write(answer["path"], answer["contents"].encode())
        elif "description" in answer:
            name = answer["name"].rpartition(":")[2]
            text = f"---\nname: {name}\ndescription: {answer['description']}\n---\n"
            write(answer["path"], text.encode())
        for each in answer.values():
            make_files(each)


def write(uri: str, content: bytes) -> None:
    """Write a file, with its folder."""
    path = Path(uri.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


class RecordedWeb:
    """An HTTP server that answers with what was recorded for the request that the query names."""

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.authorizations: list[str | None] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", "0")))
                web.authorizations.append(self.headers.get("authorization"))
                self.wfile.write(web.answer(int(self.path.rpartition("?")[2])))

            do_GET = do_DELETE = do_POST

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    def answer(self, request_id: int) -> bytes:
        """Return the recorded response to a request."""
        assert self.recording is not None
        (asked,) = [each for each in self.recording.asked if each["id"] == request_id]
        result = self.recording.answers[request_id]["result"]
        head = "".join(f"{each['name']}: {each['value']}\r\n" for each in result["headers"])
        body = self.recording.grouped.get(asked["params"]["requestId"], b"")
        body = body or base64.b64decode(result["bodyBase64"])
        return f"HTTP/1.1 {result['status']} X\r\n{head}\r\n".encode() + bytes(body)

    def serve(self) -> None:
        """Serve until `close`; for a thread."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
