"""A scripted model: an HTTP server that speaks just enough of the Responses API for the real client to act.

A script is a list of turns, a turn a list of items (`call`, `patch`, `say` make them). The n-th request of
the client is answered with the n-th turn; requests beyond the script get a closing message. A turn may be a
function of the server, for items that depend on what the client reported before. What the client sent is kept
in `requests`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Item = dict[str, Any]
Turn = list[Item] | Callable[["ModelServer"], list[Item]]


def call(name: str, arguments: dict[str, Any], call_id: str = "call-1", namespace: str | None = None) -> Item:
    """Ask the client to run one of its tools."""
    item = {"type": "function_call", "name": name, "call_id": call_id, "arguments": json.dumps(arguments)}
    return item if namespace is None else {**item, "namespace": namespace}


def patch(text: str, call_id: str = "call-1") -> Item:
    """Ask the client to apply a patch."""
    return {"type": "custom_tool_call", "name": "apply_patch", "call_id": call_id, "input": text}


def say(text: str) -> Item:
    """Say something; without calls beside it, this ends the client's turn."""
    return {
        "type": "message",
        "role": "assistant",
        "id": "msg",
        "content": [{"type": "output_text", "text": text}],
    }


def events(number: int, items: list[Item]) -> Iterator[dict[str, Any]]:
    """Yield the events of one answer."""
    yield {"type": "response.created", "response": {"id": f"resp-{number}"}}
    for index, item in enumerate(items):
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    usage = {
        "input_tokens": 1,
        "input_tokens_details": None,
        "output_tokens": 1,
        "output_tokens_details": None,
        "total_tokens": 2,
    }
    yield {"type": "response.completed", "response": {"id": f"resp-{number}", "usage": usage}}


class Handler(BaseHTTPRequestHandler):
    """Answers one request of the client."""

    protocol_version = "HTTP/1.1"
    server: ModelServer

    def do_POST(self) -> None:
        """Play the next turn."""
        length = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(length) or b"{}")
        if not self.path.endswith("/responses"):
            self.send_error(404)
            return
        lines = "".join(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in self.server.answer(body)
        )
        data = lines.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """The client may look for a list of models; there is none."""
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


class ModelServer(ThreadingHTTPServer):
    """The listening server. Owns its socket and threads; `stop` ends them."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, script: list[Turn]) -> None:
        """Listen on a free port of the loopback and play this script."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The base URL for the client's configuration."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Keep a request and return the events of its answer."""
        with self._lock:
            self.requests.append(body)
            number = len(self.requests)
        turn = self.script[number - 1] if number <= len(self.script) else [say("done")]
        items = turn(self) if callable(turn) else turn
        return list(events(number, items))

    def outputs(self) -> dict[str, Any]:
        """Return what the tools gave the model so far: call id -> output, the last one that was reported."""
        found: dict[str, Any] = {}
        for request in self.requests:
            for item in request.get("input", []):
                if str(item.get("type", "")).endswith("_output"):
                    found[item["call_id"]] = item["output"]
        return found

    def instructions(self) -> str:
        """Return everything the client told the model in its first request, as one text."""
        return json.dumps(self.requests[0], ensure_ascii=False) if self.requests else ""

    def tools(self) -> set[str]:
        """Return the names of the tools that the client offered in its first request."""
        return (
            {str(tool.get("name")) for tool in self.requests[0].get("tools", [])} if self.requests else set()
        )

    def stop(self) -> None:
        """Stop listening and wait for the accepting thread."""
        self.shutdown()
        self.server_close()
        self._thread.join()
