"""The worker of a self-hosted environment, whose tools are those of a box.

The worker is the framework's own: it polls, holds the lease, follows the session's events and posts results.
The other side is a small server on this machine that speaks the routes which the worker uses.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from execserver_adapters.anthropic import ExecserverToolset
from tests.sdk.adapters.page import run_snippet, snippet

BOX = os.environ["EXECSERVER_TEST_BOX"]
KEY = "the-key-of-the-environment"
NOW = "2026-01-01T00:00:00Z"
LIMIT_S = 60.0

WORK = {
    "id": "work-1",
    "type": "work",
    "created_at": NOW,
    "data": {"id": "session-1", "type": "session"},
    "environment_id": "env-1",
    "metadata": {},
    "state": "queued",
}
SESSION = {
    "id": "session-1",
    "type": "session",
    "agent": {"id": "agent-1", "type": "agent", "skills": []},
    "environment_id": "env-1",
    "resources": [],
    "status": "running",
}
HEARTBEAT = {
    "type": "work_heartbeat",
    "last_heartbeat": NOW,
    "lease_extended": True,
    "state": "active",
    "ttl_seconds": 60,
}
QUEUE = "/v1/environments/env-1/work"
FIXED = {
    f"POST {QUEUE}/work-1/ack": {**WORK, "state": "active"},
    f"POST {QUEUE}/work-1/heartbeat": HEARTBEAT,
    "GET /v1/sessions/session-1": SESSION,
    "GET /v1/sessions/session-1/events": {"data": [], "next_page": None},
}


class Environment:
    """One session of one environment, whose agent calls tools one after the other and then ends it."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self._calls = [*calls]
        self._made = 0
        self._polls = 0
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.results: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []  # of each request: what, and with which credential
        self.stopped = threading.Event()
        self._next()

    def answer(self, route: str, body: Any) -> Any:
        """Return the answer to a request that is not the stream of events.  Raises LookupError."""
        if route == f"GET {QUEUE}/poll":
            self._polls += 1
            return WORK if self._polls == 1 else None
        if route == f"POST {QUEUE}/work-1/stop":
            self.stopped.set()
            return {**WORK, "state": "stopped"}
        if route == "POST /v1/sessions/session-1/events":
            self.results += body["events"]
            self._next()
            return {"data": []}
        return FIXED[route]

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the session's events as they come, until it has ended."""
        while True:
            event = self._events.get(timeout=LIMIT_S)
            yield event
            if event["type"] == "session.status_terminated":
                return

    def _next(self) -> None:
        self._made += 1
        event: dict[str, Any] = {"id": f"event-{self._made}", "processed_at": NOW}
        if self._calls:
            name, given = self._calls.pop(0)
            event |= {"type": "agent.tool_use", "name": name, "input": given}
            event |= {"evaluated_permission": "allow"}
        else:
            event |= {"type": "session.status_terminated"}
        self._events.put(event)


@contextmanager
def served(environment: Environment) -> Iterator[str]:
    """Serve an environment on this machine."""

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            route = f"{self.command} {self.path.partition('?')[0]}"
            environment.asked.append((route, self.headers.get("authorization", "")))
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size) or b"null")
            if route == "GET /v1/sessions/session-1/events/stream":
                self._stream()
                return
            try:
                status, data = 200, json.dumps(environment.answer(route, body)).encode()
            except LookupError:
                status, data = 404, b"{}"
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for event in environment.events():
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()

        def log_message(self, *rest: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_worker_made_as_the_page_says_serves_a_session_with_the_tools_of_a_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, here = tmp_path / "work", tmp_path / "here"
    place.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    environment = Environment(
        ("write", {"file_path": "answer.py", "content": "print(6 * 7)\n"}),
        ("bash", {"command": "X=kept; python3 answer.py"}),
        ("bash", {"command": "echo $X; pwd"}),
        ("bash", {"command": "exit 3"}),
        ("read", {"file_path": "../here/none"}),
        ("read", {"file_path": "answer.py"}),
    )
    code = snippet("Anthropic", BOX, str(place))
    closed: list[ExecserverToolset] = []
    aclose = ExecserverToolset.aclose

    async def noted(toolset: ExecserverToolset) -> None:
        await aclose(toolset)
        closed.append(toolset)

    monkeypatch.setattr(ExecserverToolset, "aclose", noted)

    async def work(url: str) -> None:
        client = AsyncAnthropic(api_key="the-key-of-the-organization", base_url=url, max_retries=0)
        async with client, asyncio.timeout(LIMIT_S):
            names = {"client": client, "environment_id": "env-1", "environment_key": KEY}
            running = asyncio.create_task(run_snippet(code, **names))
            await asyncio.to_thread(environment.stopped.wait, LIMIT_S)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with served(environment) as url:
        asyncio.run(work(url))
    told = ["".join(block["text"] for block in result["content"]) for result in environment.results]
    wrong = [result["is_error"] for result in environment.results]
    assert [result["type"] for result in environment.results] == ["user.tool_result"] * 6
    assert told[1:3] == ["42", f"kept\n{place}"]
    assert "[the shell ended with status 3]" in told[3]
    assert "outside the working directory" in told[4]
    assert told[5] == "print(6 * 7)\n"
    assert wrong == [False, False, False, True, True, False]
    assert [*here.iterdir()] == []
    assert {credential for _, credential in environment.asked} == {f"Bearer {KEY}"}
    assert len(closed) == 1, "the runner of the session closes its tools"
