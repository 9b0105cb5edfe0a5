"""A client of the handlers in memory: real sessions over played processes, no connection."""

from __future__ import annotations

import json
import os
from typing import Any, cast

import gevent
import msgspec

from execserver.core.file_handles import FileHandles
from execserver.handlers import load_handlers
from execserver.handlers.context import Call, ConnectionContext, Services
from execserver.handlers.dispatch import dispatch
from execserver.handlers.guard import guarded
from execserver.handlers.replies import Answer, InTurn, Later, Reply
from execserver.protocol.envelope import Request, encode_result
from execserver.protocol.errors import RpcError
from execserver.services.confinement.sandbox import SandboxService
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import SandboxedFiles
from execserver.services.http.service import HttpService, HttpStreams
from execserver.services.machine.environment import EnvironmentService
from execserver.services.sessions.host import SessionHost
from execserver.settings import Settings
from tests.services.fakes import FakeSink, FakeSpawner
from tests.support.greenlets import turns
from tests.support.plain_workers import start_plain_worker

INHERITED = {b"PATH": b"/usr/bin:/bin", b"HOME": b"/root", b"API_KEY": b"secret"}


class Server:
    """The services of one server, with played processes."""

    def __init__(self, spawner: FakeSpawner) -> None:
        load_handlers()
        settings = Settings()
        self.spawner = spawner
        self.sessions = SessionHost(spawner.as_spawner(), settings)
        self.files = FileService(settings)
        self.http = HttpService(settings, {})
        environment = EnvironmentService(INHERITED, find_login_shell=lambda _: "/bin/sh")
        self.sandbox = SandboxService(settings, INHERITED)
        self.sandboxed = SandboxedFiles(self.files, self.sandbox, start_plain_worker, settings)
        self.services = Services(
            *(
                self.sessions,
                self.files,
                self.http,
                environment,
                INHERITED,
                self.sandbox,
                self.sandboxed,
                settings,
            )
        )

    def close(self) -> None:
        """Stop what runs beside the processes."""
        self.sessions.close()
        self.sandboxed.close()
        self.files.close()
        self.sandbox.close()


class Client:
    """One connection's requests, answered one at a time."""

    def __init__(self, server: Server, *, ready: bool = True) -> None:
        self.server = server
        self.sink = FakeSink()
        streams = HttpStreams(server.http, self.sink)
        self.connection = ConnectionContext(self.sink, streams, FileHandles(os.close))
        self.call = Call(self.connection, server.services)
        if ready:
            self.ask("initialize", clientName="test")
            self.connection.rules.notification("initialized")

    def answer(self, method: str, params: object = None) -> Answer:
        """Return what the handler returns, or raise `RpcError`."""
        request = Request(1, method, msgspec.Raw(json.dumps(params).encode()))

        def answer() -> Answer:
            first = dispatch(self.call, request)
            return first.run() if isinstance(first, InTurn) else first

        return guarded(method, answer)

    def ask(self, method: str, /, **params: object) -> Any:
        """Return the decoded result, or (code, message); an answer that waits is waited for."""
        try:
            answer = self.answer(method, params)
        except RpcError as error:
            return (error.code, error.message)
        return self.settled(method, answer)

    def settled(self, method: str, answer: Answer) -> Any:
        """Return what comes of an answer, as `ask` does."""
        try:
            return guarded(method, lambda: self._result_of(answer))
        except RpcError as error:
            return (error.code, error.message)

    def ask_later(self, method: str, /, **params: object) -> gevent.Greenlet[..., Any]:
        """Ask what has to wait; return the greenlet that gets the result."""
        answer = self.answer(method, params)
        assert isinstance(answer, Later), "this has an answer at once"

        greenlet = gevent.spawn(lambda: self.settled(method, answer))
        turns()
        return greenlet

    def heard(self) -> list[Any]:
        """Return the notifications so far."""
        return [json.loads(message) for message in self.sink.messages]

    def leave(self) -> None:
        """Let the client go, as the end of its connection does."""
        self.sink.close()
        self.call.detach()
        self.connection.close()

    def _result_of(self, answer: Answer) -> Any:
        if isinstance(answer, Later):
            answer = answer.run()
        result = answer.result if isinstance(answer, Reply) else answer
        text = encode_result(1, cast(msgspec.Struct | msgspec.Raw, result))
        if isinstance(answer, Reply):
            answer.then()
            turns()
        return json.loads(text)["result"]
