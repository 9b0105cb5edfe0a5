"""Connects to whichever of several addresses answers first (RFC 8305), on asyncio.

The next address is tried when one has failed or was silent for a quarter of a second; families alternate.
Attempts that are still running when one has won are abandoned.
"""

from __future__ import annotations

import asyncio
import socket
from itertools import zip_longest
from typing import Final

from execserver_client._sockets import Place, connect

HEAD_START_S: Final = 0.25
MAX_ADDRESSES: Final = 8  # of one name; more are not tried


def in_turn(places: list[Place]) -> list[Place]:
    """Return the places to try: the system's first choice first, then families alternate."""
    if not places:
        return []
    first = [each for each in places if each.family == places[0].family]
    others = [each for each in places if each.family != places[0].family]
    paired = [each for pair in zip_longest(first, others) for each in pair if each is not None]
    return paired[:MAX_ADDRESSES]


async def first_to_answer(places: list[Place]) -> socket.socket:
    """Return a socket connected to one of the places.  Raises OSError, that of the first if none answers."""
    if not places:
        raise OSError("the name has no address")
    attempts: list[asyncio.Task[socket.socket]] = []
    running: set[asyncio.Task[socket.socket]] = set()
    left = iter(places)
    try:
        while (place := next(left, None)) is not None or running:
            if place is not None:
                attempts.append(asyncio.create_task(connect(place)))
                running.add(attempts[-1])
            limit = None if len(attempts) == len(places) else HEAD_START_S
            done, running = await asyncio.wait(running, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for attempt in done:
                if attempt.exception() is None:
                    attempts.remove(attempt)
                    return attempt.result()
        failure = attempts[0].exception()
        assert failure is not None
        raise OSError(*failure.args)  # a copy: raised itself, it and the attempts would hold each other
    finally:
        await _abandon(attempts)


async def _abandon(attempts: list[asyncio.Task[socket.socket]]) -> None:
    for attempt in attempts:
        attempt.cancel()
    for outcome in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(outcome, socket.socket):  # it had connected in the same turn
            outcome.close()
