"""What remote mode needs from outside, so that tests can bring their own."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import gevent

from execserver.remote.auth.kinds import Auth
from execserver.remote.backoff import Backoff


class Timing(NamedTuple):
    """The durations of one connection, in seconds."""

    connect_s: float = 30.0
    ping_interval_s: float = 30.0
    pong_timeout_s: float = 60.0


class Tools:
    """What the executor needs from outside: variables, time and waiting; tests bring their own."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        sleep: Callable[[float], object] = gevent.sleep,
        backoff: Backoff | None = None,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        credential: Callable[[], Auth] | None = None,
    ) -> None:
        """`credential` waits for the one that stdin gives, where the configuration says so."""
        self.environ = dict(os.environ if environ is None else environ)
        self.sleep = sleep
        self.backoff = backoff or Backoff()
        self.timing = timing or Timing()
        self.clock = clock
        self.chance = chance
        self.credential = credential
