"""Relays and executors that break rules, lie, or say nothing; and losses at the worst moments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from execserver.client.errors import ConnectFailed, ConnectTimeout, RegistryRefused, TransportClosed
from execserver.client.relay.course import INBOX_BYTES
from execserver.wire.noise_state import HandshakeFailed
from execserver.wire.relay_frames import RelayFrame, Reset, decode_frame, encode_frame
from execserver_client._relay import RelayTransport
from execserver_client._relay_route import relay_route
from tests.sdk.json_talk import Talk
from tests.sdk.relay_scene import until
from tests.sdk.scripted_relay import OTHER_KEYS, Executor, Rendezvous, Reply, ScriptedRelay
from tests.sdk.support import run_async


def scene(test: Callable[[ScriptedRelay], Awaitable[None]], relay: ScriptedRelay | None = None) -> None:
    """Run a test with a relay."""

    async def run() -> None:
        async with relay or ScriptedRelay() as running:
            await test(running)

    run_async(run())


async def opened(relay: ScriptedRelay, **options: Any) -> RelayTransport:
    return await relay_route(relay.args(**options), {}).open_transport(5.0)


async def error_of(transport: RelayTransport) -> Exception:
    try:
        while await transport.receive() is not None:
            pass
    except (TransportClosed, RegistryRefused) as error:
        await transport.close()
        return error
    raise AssertionError("a stream has no orderly end")


def test_calls_in_flight_survive_a_websocket_that_is_lost() -> None:
    async def test(relay: ScriptedRelay) -> None:
        transport = await opened(relay)
        talk = Talk(transport)
        await talk.initialize()
        for number in range(5):
            relay.rendezvous[-1].drop()
            assert await talk.call("echo", {"n": number}) == {"n": number}
        await transport.close()
        await until(lambda: relay.executor.resets)
        assert relay.executor.asked == ["initialize", "initialized", *["echo"] * 5]
        assert [reason for _, reason in relay.executor.resets] == ["closed"]

    scene(test)


def test_with_a_plain_executor_the_transport_ends_with_its_websocket() -> None:
    async def test(relay: ScriptedRelay) -> None:
        relay.play = Executor(reliable=False).serve
        transport = await opened(relay)
        talk = Talk(transport)
        await talk.initialize()
        assert not transport.is_reliable
        relay.rendezvous[-1].drop()
        assert "the way to the relay is lost" in str(await error_of(transport))
        with pytest.raises(TransportClosed, match="the way to the relay is lost"):
            await transport.send(b"{}")
        assert relay.calls == 1

    scene(test)


def test_what_is_not_for_this_stream_is_ignored() -> None:
    async def test(relay: ScriptedRelay) -> None:
        transport = await opened(relay)
        talk = Talk(transport)
        await talk.initialize()
        relay.rendezvous[-1].send_text("no frame")
        await relay.rendezvous[-1].send(encode_frame(RelayFrame("another", Reset("gone"))))
        assert await talk.call("echo", 1) == 1
        await transport.close()

    scene(test)


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"", b"\x08\x02", b"\x00" * 1000])
def test_a_frame_that_is_none_ends_the_stream(garbage: bytes) -> None:
    async def test(relay: ScriptedRelay) -> None:
        transport = await opened(relay)
        await Talk(transport).initialize()
        await relay.rendezvous[-1].send(garbage)
        assert type(await error_of(transport)) is TransportClosed

    scene(test)


def test_a_message_longer_than_a_relays_costs_the_websocket_and_no_message() -> None:
    async def test(relay: ScriptedRelay) -> None:
        transport = await opened(relay)
        talk = Talk(transport)
        await talk.initialize()
        await relay.rendezvous[-1].send(bytes(256 * 1024 + 1))
        assert await talk.call("echo", 1) == 1
        assert len(relay.rendezvous) == 2
        await transport.close()

    scene(test)


def test_a_key_that_is_not_the_executors_gets_nothing() -> None:
    """A registry that swaps the key can only keep the two apart: nobody else can read the handshake."""

    async def test(relay: ScriptedRelay) -> None:
        relay.key = OTHER_KEYS.public.to_json()
        relay.play = refuse_handshakes
        transport = await opened(relay)
        await transport.send(b'{"id":1,"method":"initialize","params":{}}')
        assert "reset: noise_relay_protocol_error" in str(await error_of(transport))

    async def refuse_handshakes(rendezvous: Rendezvous) -> None:
        await rendezvous.receive()
        handshake = await rendezvous.receive()
        assert handshake is not None
        with pytest.raises(HandshakeFailed):
            await Executor().take(rendezvous, handshake)
        refusal = Reset("noise_relay_protocol_error")
        await rendezvous.send(encode_frame(RelayFrame(decode_frame(handshake).stream_id, refusal)))

    scene(test)


def test_a_key_that_changes_ends_the_stream_and_no_other_executor_is_asked() -> None:
    async def test(relay: ScriptedRelay) -> None:
        route = relay_route(relay.args(), {})
        transport = await route.open_transport(5.0)
        await Talk(transport).initialize()
        relay.key = OTHER_KEYS.public.to_json()
        relay.rendezvous[-1].drop()
        assert "another executor has taken over" in str(await error_of(transport))
        with pytest.raises(RegistryRefused, match="another executor has taken over"):
            await route.open_transport(5.0)
        assert len(relay.rendezvous) == 1

    scene(test)


def test_a_relay_that_says_nothing_is_given_up() -> None:
    async def test(relay: ScriptedRelay) -> None:
        relay.is_silent = True
        with pytest.raises(ConnectTimeout, match=r"did not answer within 0\.05 s"):
            await relay_route(relay.args(), {}).open_transport(0.05)

    scene(test)


@pytest.mark.parametrize(
    ("reply", "kind", "text"),
    [
        (Reply(401, {"error": {"message": "who?"}}), RegistryRefused, r"\(401 Unauthorized\): who\?"),
        (Reply(404, {}), RegistryRefused, "404 Not Found"),
        (Reply(302, {}), RegistryRefused, "302 Found"),
        (Reply(503, {}), ConnectFailed, "503 Service Unavailable"),
        (Reply(429, {}), ConnectFailed, "429 Too Many Requests"),
        (Reply(200, {}), RegistryRefused, "environment registry request failed"),
        (Reply(200, []), RegistryRefused, "environment registry request failed"),
        (Reply(200, b"[" * 100_000), RegistryRefused, "environment registry request failed"),
        (Reply(200, b"\xff"), RegistryRefused, "environment registry request failed"),
        (Reply(200, b" " * (1024 * 1024 + 1)), ConnectFailed, "longer than 1048576 bytes"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Reply) else None,
)
def test_what_the_registry_says_is_told(reply: Reply, kind: type[Exception], text: str) -> None:
    async def test(relay: ScriptedRelay) -> None:
        relay.reply = lambda good: reply
        with pytest.raises(kind, match=text):
            await opened(relay)

    scene(test)


@pytest.mark.parametrize(
    ("member", "value", "text"),
    [
        ("environment_id", "other", "returned a different environment id"),
        ("security_profile", "x", "unsupported security profile `x`"),
        ("url", " ", "incomplete Noise connection data"),
        ("harness_key_authorization", "x" * 5000, "authorization cannot be used"),
        ("executor_public_key", {"suite": "x"}, "environment registry request failed"),
    ],
)
def test_an_answer_that_does_not_fit_is_final(member: str, value: object, text: str) -> None:
    async def test(relay: ScriptedRelay) -> None:
        relay.reply = lambda good: Reply(200, good | {member: value})
        with pytest.raises(RegistryRefused, match=text):
            await opened(relay)

    scene(test)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "ws://", "ws://127.0.0.1:1/?secret=1", "ws://[::1"])
def test_an_address_that_leads_nowhere_is_told_without_its_secrets(url: str) -> None:
    async def test(relay: ScriptedRelay) -> None:
        relay.reply = lambda good: Reply(200, good | {"url": url})
        with pytest.raises(ConnectFailed, match="cannot connect to the relay") as failed:
            await opened(relay)
        assert "secret" not in str(failed.value)

    scene(test)


@pytest.mark.parametrize(
    ("statuses", "calls", "connects"), [([401], 2, True), ([401, 401], 2, False), ([503], 1, False)]
)
def test_a_spent_address_is_asked_for_once_more(statuses: list[int], calls: int, connects: bool) -> None:
    async def test(relay: ScriptedRelay) -> None:
        relay.upgrades = list(statuses)
        if connects:
            await (await opened(relay)).close()
        else:
            with pytest.raises(ConnectFailed, match=f"the rendezvous answered {statuses[-1]}"):
                await opened(relay)
        assert relay.calls == calls

    scene(test)


def test_a_token_with_a_line_end_is_never_sent() -> None:
    async def test(relay: ScriptedRelay) -> None:
        args = relay.args().replace(token="x\r\nhost: elsewhere")
        with pytest.raises(RegistryRefused, match="builder error"):
            await relay_route(args, {}).open_transport(5.0)
        assert relay.calls == 0

    scene(test)


def test_a_registry_that_is_away_for_a_moment_is_asked_again() -> None:
    async def test(relay: ScriptedRelay) -> None:
        transport = await opened(relay)
        talk = Talk(transport)
        await talk.initialize()
        relay.reply = lambda good: Reply(404, {}) if relay.calls < 4 else Reply(200, good)
        relay.rendezvous[-1].drop()
        assert await talk.call("echo", 1) == 1
        assert relay.calls == 4
        await transport.close()

    scene(test)


def test_an_abandoned_stream_is_told_of_before_anything_else() -> None:
    async def test(relay: ScriptedRelay) -> None:
        route = relay_route(relay.args(), {})
        transport = await route.open_transport(5.0)
        await Talk(transport).initialize()
        stream_id = transport._stream.stream_id
        relay.reply = lambda good: Reply(503, {})
        relay.rendezvous[-1].drop()
        await until(lambda: relay.calls >= 2)
        await transport.close()
        relay.reply = lambda good: Reply(200, good)
        transport = await route.open_transport(5.0)
        await Talk(transport).initialize()
        assert relay.executor.resets == [(stream_id, "closed")]
        await transport.close()

    scene(test)


@pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "plain"])
def test_who_does_not_read_holds_the_executor_back(reliable: bool) -> None:
    async def test(relay: ScriptedRelay) -> None:
        executor = Executor(reliable=reliable)
        relay.play = executor.serve
        transport = await opened(relay)
        await Talk(transport).initialize()
        (stream,) = executor.streams.values()
        sent = [json.dumps({"n": number, "text": "x" * 200_000}).encode() for number in range(150)]
        for message in sent:
            stream.send(message, 0.0)
        flushing = asyncio.create_task(executor.flush(relay.rendezvous[-1]))
        await until(lambda: transport._course.is_holding)
        assert transport._course._inbox_bytes < INBOX_BYTES + 1024 * 1024
        assert stream.queued_bytes > 0
        assert [await transport.receive() for _ in sent] == sent
        await flushing
        await transport.close()

    scene(test)


def test_a_sender_that_waits_is_woken_by_the_end() -> None:
    async def test(relay: ScriptedRelay) -> None:
        relay.play = never_read
        transport = await opened(relay)
        waiting = [asyncio.create_task(fill(transport)) for _ in range(3)]
        await until(lambda: len(transport._senders) == 3)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        await transport.close()
        for task in waiting[1:]:
            with pytest.raises(TransportClosed, match="the connection is closed"):
                await task

    async def never_read(rendezvous: Rendezvous) -> None:
        await asyncio.Event().wait()

    async def fill(transport: RelayTransport) -> None:
        while True:
            await transport.send(bytes(500_000))

    scene(test)
