"""A session on asyncio: calls, losses, resuming, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from execserver.client.errors import (
    ConnectFailed,
    ConnectTimeout,
    ExecServerError,
    InvalidRequestError,
    ProtocolViolation,
    ResumeFailed,
    TransportClosed,
    WaitTimeout,
)
from execserver.client.options import ExecServerClientConnectOptions
from execserver.client.rules.event_log import Output
from execserver.client.rules.recovery import SessionState
from execserver.protocol.lifting import JsonText
from execserver_client._flow import Gate
from execserver_client._session import Session
from tests.sdk.fake_server import SESSION, FakeServer, Refusal
from tests.sdk.support import run_async

QUICK = ExecServerClientConnectOptions(resume_interval=0.001, resume_window=30.0)


class Owner:
    """Notes what a session's listener hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.notes: list[tuple[str, object]] = []

    def on_notification(self, method: str, params: JsonText) -> None:
        self.notes.append((method, msgspec.json.decode(bytes(params))))

    def on_output(self, process_id: str, output: Output) -> None:
        self.notes.append((process_id, output))

    def on_lost(self, error: ExecServerError) -> None:
        self.heard.append(f"lost: {error}")

    def on_resumed(self) -> None:
        self.heard.append("resumed")

    def on_ended(self, error: ExecServerError) -> None:
        self.heard.append(f"ended: {error}")


class Scene:
    """A session, its owner and the fake it talks to."""

    def __init__(self, options: ExecServerClientConnectOptions, can_resume: bool) -> None:
        self.fake = FakeServer()
        self.owner = Owner()
        self.gate = Gate(options.max_unread_bytes, options.max_unread_bytes_while_waiting)
        self.session = Session(self.fake.open_transport, options, self.gate, self.owner, can_resume)

    async def ask(self, method: str = "m", *, resend: bool = False) -> asyncio.Task[JsonText]:
        """Call in a task of its own and wait until the fake has the request."""
        before = len(self.fake.asked(method))
        task = asyncio.create_task(self.session.request(method, {}, resend))
        await self.fake.wait_for(method, before + 1)
        return task

    async def drop(self) -> None:
        """End the connection and wait until the session goes on."""
        before = len(self.fake.asked("initialized"))
        self.fake.current.drop()
        await self.fake.wait_for("initialized", before + 1)


@asynccontextmanager
async def opened(
    options: ExecServerClientConnectOptions = QUICK, can_resume: bool = True
) -> AsyncIterator[Scene]:
    scene = Scene(options, can_resume)
    await scene.session.open()
    try:
        yield scene
    finally:
        await scene.session.close()


def played(
    options: ExecServerClientConnectOptions = QUICK, can_resume: bool = True
) -> Callable[[Callable[[Scene], Awaitable[None]]], None]:
    """Run a test's body with an open session."""

    def run(body: Callable[[Scene], Awaitable[None]]) -> None:
        async def main() -> None:
            async with opened(options, can_resume) as scene:
                await body(scene)

        run_async(main())

    return run


def test_a_session_is_opened_by_initialize_and_initialized() -> None:
    @played()
    async def _(scene: Scene) -> None:
        assert [request.method for request in scene.fake.requests] == ["initialize", "initialized"]
        assert (scene.session.state, scene.session.session_id) == (SessionState.OPEN, SESSION)


def test_answers_are_matched_by_id_whatever_their_order() -> None:
    @played()
    async def _(scene: Scene) -> None:
        tasks = [await scene.ask() for _ in range(3)]
        ids = [request.call_id for request in scene.fake.asked("m")]
        for call_id in reversed(ids):
            scene.fake.current.reply(call_id, {"answer": call_id})
        answers = await asyncio.gather(*tasks)
        assert [msgspec.json.decode(bytes(answer))["answer"] for answer in answers] == ids


def test_notifications_come_in_order_and_before_the_answer_behind_them() -> None:
    @played()
    async def _(scene: Scene) -> None:
        task = await scene.ask()
        scene.fake.current.push("a", n=1)
        scene.fake.current.put(
            '{"method":"process/output","params":{"processId":"p","seq":1,"stream":"pty","chunk":"eA=="}}'
        )
        scene.fake.current.reply(scene.fake.asked("m")[0].call_id, {})
        await task
        assert scene.owner.notes == [("a", {"n": 1}), ("p", Output(1, "pty", b"x"))]


def test_a_refusal_raises_the_error_of_its_code() -> None:
    @played()
    async def _(scene: Scene) -> None:
        def refuse(params: object) -> object:
            raise Refusal(-32600, "no")

        scene.fake.answers["m"] = refuse
        with pytest.raises(InvalidRequestError, match=r"m: no \(code -32600\)"):
            await scene.session.request("m", {})


def test_a_call_has_a_time_limit_and_its_late_answer_is_ignored() -> None:
    @played()
    async def _(scene: Scene) -> None:
        with pytest.raises(WaitTimeout, match=r"m was not answered within 0\.01 s"):
            await scene.session.request("m", {}, timeout=0.01)
        scene.fake.current.reply(scene.fake.asked("m")[0].call_id, {"late": True})
        scene.fake.answers["m"] = lambda params: {"right": True}
        assert msgspec.json.decode(bytes(await scene.session.request("m", {}, timeout=5))) == {"right": True}


def test_a_cancelled_call_is_forgotten() -> None:
    @played()
    async def _(scene: Scene) -> None:
        task = await scene.ask()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        scene.fake.current.reply(scene.fake.asked("m")[0].call_id, {})
        scene.fake.answers["n"] = lambda params: 7
        assert msgspec.json.decode(bytes(await scene.session.request("n", {}))) == 7


@pytest.mark.parametrize("count", [10_000])
def test_ten_thousand_cancelled_calls_leave_nothing(count: int) -> None:
    """Those that wait for their turn, too, and those whose answer comes in the same moment."""

    @played(QUICK.replace(max_in_flight=100))
    async def _(scene: Scene) -> None:
        tasks = [asyncio.create_task(scene.session.request("m", {})) for _ in range(count)]
        await scene.fake.wait_for("m", 100)
        for request in scene.fake.asked("m")[:50]:
            scene.fake.current.reply(request.call_id, {})
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(end, asyncio.CancelledError) for end in ends) >= count - 100
        connection = scene.session._connection
        assert connection is not None
        assert len(connection._calls) == 0
        assert scene.gate._waiting == {}
        # All 100 places are free again.
        again = [asyncio.create_task(scene.session.request("n", {})) for _ in range(101)]
        await scene.fake.wait_for("n", 100)
        assert len(scene.fake.asked("n")) == 100
        for request in scene.fake.asked("n"):
            scene.fake.current.reply(request.call_id, 1)
        last = await scene.fake.wait_for("n", 101)
        scene.fake.current.reply(last.call_id, 1)
        assert len(await asyncio.gather(*again)) == 101


def test_a_lost_connection_is_resumed_and_calls_in_flight_fail() -> None:
    @played()
    async def _(scene: Scene) -> None:
        task = await scene.ask()
        await scene.drop()
        with pytest.raises(TransportClosed, match="the server ended the connection"):
            await task
        assert scene.fake.asked("initialize")[1].params["resumeSessionId"] == SESSION
        assert scene.owner.heard == ["lost: the server ended the connection", "resumed"]
        assert scene.session.resumptions == 1
        assert scene.fake.carriers[0].closed


def test_a_call_that_may_be_repeated_survives_a_loss() -> None:
    @played()
    async def _(scene: Scene) -> None:
        task = await scene.ask(resend=True)
        scene.fake.answers["m"] = lambda params: "done"
        scene.fake.current.drop()
        assert msgspec.json.decode(bytes(await task)) == "done"


def test_calls_made_meanwhile_wait_for_the_connection_and_have_their_limit() -> None:
    @played()
    async def _(scene: Scene) -> None:
        scene.fake.unreachable = True
        scene.fake.current.drop()
        while scene.session.state is SessionState.OPEN:
            await asyncio.sleep(0)
        with pytest.raises(WaitTimeout, match="could not be sent"):
            await scene.session.request("m", {}, timeout=0.01)
        task = asyncio.create_task(scene.session.request("m", {}))
        scene.fake.answers["m"] = lambda params: 5
        scene.fake.unreachable = False
        assert msgspec.json.decode(bytes(await task)) == 5


def test_the_window_bounds_everything() -> None:
    @played(QUICK.replace(resume_window=0.05))
    async def _(scene: Scene) -> None:
        scene.fake.unreachable = True
        scene.fake.current.drop()
        with pytest.raises(ResumeFailed, match=r"not resumed within 0\.05 s"):
            await scene.session.request("m", {}, resend=True)
        assert scene.session.state is SessionState.ENDED
        assert scene.owner.heard[-1].startswith("ended: the connection was lost")


def test_a_server_over_pipes_is_not_resumed() -> None:
    @played(can_resume=False)
    async def _(scene: Scene) -> None:
        scene.fake.current.drop()
        with pytest.raises(TransportClosed):
            await scene.session.request("m", {})
        assert len(scene.fake.carriers) == 1


def test_closing_ends_waiting_calls_and_may_be_repeated() -> None:
    @played()
    async def _(scene: Scene) -> None:
        task = await scene.ask()
        await asyncio.gather(scene.session.close(), scene.session.close())
        with pytest.raises(TransportClosed, match="closed by this client"):
            await task
        with pytest.raises(TransportClosed, match="this client was closed"):
            await scene.session.request("m", {})
        assert scene.owner.heard == ["ended: this client was closed"]
        assert scene.fake.current.closed


def test_closing_ends_a_recovery() -> None:
    @played()
    async def _(scene: Scene) -> None:
        scene.fake.answers.pop("initialize")
        scene.fake.current.drop()
        await scene.fake.wait_for("initialize", 2)
        await scene.session.close()
        assert all(carrier.closed for carrier in scene.fake.carriers)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"sessionId": "another"}, ProtocolViolation),
        ({"nonsense": 1}, ProtocolViolation),
        (None, ConnectTimeout),
    ],
)
def test_an_opening_that_fails_leaves_no_connection(answer: object, kind: type[ExecServerError]) -> None:
    async def main() -> None:
        patience = 0.05 if answer is None else 30.0
        options = QUICK.replace(resume_session_id="wanted", initialize_timeout=patience)
        scene = Scene(options, can_resume=True)
        if answer is None:
            scene.fake.answers.pop("initialize")
        else:
            scene.fake.answers["initialize"] = lambda params: answer
        with pytest.raises(kind):
            await scene.session.open()
        assert scene.fake.current.closed
        scene.fake.unreachable = True
        with pytest.raises(ConnectFailed):
            await scene.session.open()

    run_async(main())


def test_a_cancelled_opening_leaves_no_connection() -> None:
    async def main() -> None:
        scene = Scene(QUICK, can_resume=True)
        scene.fake.answers.pop("initialize")
        task = asyncio.create_task(scene.session.open())
        await scene.fake.wait_for("initialize")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert scene.fake.current.closed

    run_async(main())


def test_a_session_that_ended_is_freed_without_the_collector() -> None:
    async def main() -> None:
        async with opened() as scene:
            await scene.drop()
            found = weakref.ref(scene.session)
        del scene
        gc.disable()
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            assert found() is None
        finally:
            gc.enable()

    run_async(main())
