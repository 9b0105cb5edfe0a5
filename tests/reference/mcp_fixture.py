"""Two small MCP servers for the real client to use through an exec-server: one on stdio, one on HTTP."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STDIO_SERVER = """
import json, os, sys
print("a line on stderr", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}},
                  "serverInfo": {"name": "probe", "version": "1"}}
    elif message["method"] == "tools/list":
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        result = {"tools": [{"name": "whereami", "description": "d", "inputSchema": schema}]}
    else:
        size = message["params"].get("arguments", {}).get("n", 1)
        mark, own = os.environ.get("EXECUTOR_MARK", ""), os.environ.get("OWN", "")
        text = "mark=" + mark + " own=" + own + " " + "z" * size
        result = {"content": [{"type": "text", "text": text}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


class Handler(BaseHTTPRequestHandler):
    """One MCP request over HTTP."""

    protocol_version = "HTTP/1.1"
    server: McpHttpServer

    def do_POST(self) -> None:
        """Answer a JSON-RPC message with JSON, or with an event stream for a tool call."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((str(message.get("method")), dict(self.headers.items())))
        if "id" not in message:
            self._send(202, "text/plain", b"")
            return
        reply = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": self._result(message)})
        if message["method"] == "tools/call":
            self._send(200, "text/event-stream", f"event: message\ndata: {reply}\n\n".encode())
        else:
            self._send(200, "application/json", reply.encode())

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "initialize":
            return {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "probe", "version": "1"},
            }
        if message["method"] == "tools/list":
            schema = {"type": "object", "properties": {}}
            return {"tools": [{"name": "greet", "description": "d", "inputSchema": schema}]}
        return {"content": [{"type": "text", "text": "hello over http"}]}

    def do_GET(self) -> None:
        """There is no stream of the server's own."""
        self.send_error(405)

    def do_DELETE(self) -> None:
        """The client ends its session."""
        self.server.seen.append(("DELETE", dict(self.headers.items())))
        self._send(200, "text/plain", b"")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Mcp-Session-Id", "session-1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


class McpHttpServer(ThreadingHTTPServer):
    """The listening server; `seen` has the method and headers of each request. `stop` ends it."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        """Listen on a free port of the loopback."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, dict[str, str]]] = []
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The address for the client's configuration."""
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def stop(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()
        self._thread.join()
