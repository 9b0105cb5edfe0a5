"""The wake-up of tasks that wait for a process."""

from __future__ import annotations

import asyncio

from execserver_client._pulse import Pulse


def test_a_beat_wakes_all_who_wait_and_nobody_later() -> None:
    async def main() -> list[bool]:
        pulse = Pulse()
        pulse.beat()  # for nobody, and not kept
        early = [asyncio.ensure_future(pulse.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert [each.done() for each in early] == [False, False, False]
        pulse.beat()
        late = asyncio.ensure_future(pulse.wait())
        await asyncio.gather(*early)
        await asyncio.sleep(0)
        found = late.done()
        pulse.beat()
        await late
        return [found, *(each.done() for each in early)]

    assert asyncio.run(main()) == [False, True, True, True]


def test_one_who_is_cancelled_leaves_nothing_behind_and_the_others_wait_on() -> None:
    async def main() -> tuple[int, bool]:
        pulse = Pulse()
        waiting = [asyncio.ensure_future(pulse.wait()) for _ in range(1000)]
        await asyncio.sleep(0)
        for each in waiting[1:]:
            each.cancel()
        await asyncio.gather(*waiting[1:], return_exceptions=True)
        left = len(pulse._waiters or ())
        pulse.beat()
        await waiting[0]
        return left, all(each.cancelled() for each in waiting[1:])

    assert asyncio.run(main()) == (1, True)


def test_one_who_is_woken_and_cancelled_in_one_turn_ends_cancelled() -> None:
    async def main() -> bool:
        pulse = Pulse()
        waiting = asyncio.ensure_future(pulse.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        pulse.beat()
        await asyncio.wait([waiting])
        return waiting.cancelled()

    assert asyncio.run(main())
