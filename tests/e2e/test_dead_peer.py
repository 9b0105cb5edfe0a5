"""A client whose machine is gone without a word: its session is free again in time, over another way."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import ROOT
from tests.support.dead_link import CUT, WHOLE, DeadLink, cannot_make_links
from tests.support.peer import RemoteError
from tests.support.producer import Producer
from tests.support.running import output_until, run, start, terminate
from tests.support.server_process import OURS, Flavour, ServerProcess
from tests.support.waiting import wait_until
from tests.support.ws_peer import WsPeer

WHY_NOT = cannot_make_links()
ALREADY_ATTACHED = -32010
PROMISED_S = 20.0
KERNEL = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
SHORT: dict[str, object] = {
    "keepalive_idle_s": 1,
    "keepalive_interval_s": 1,
    "keepalive_probes": 2,
    "tcp_user_timeout_s": 2.0,
}
SHORT_S = 20.0
pytestmark = [
    pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT),
    pytest.mark.ours_only("there the session stays taken until the kernel gives up"),
    pytest.mark.timeout(120),
]


class Scene:
    """A server behind two links, and a client on the one that will be cut."""

    def __init__(self, stack: ExitStack, flavour: Flavour, settings: dict[str, object]) -> None:
        self.link = DeadLink()
        stack.callback(self.link.close)
        inside = dataclasses.replace(flavour, argv=(*self.link.prefix, *flavour.argv))
        options = () if flavour.is_reference else ("--insecure-listen",)
        self.server = stack.enter_context(
            ServerProcess(inside, listen="ws://0.0.0.0:0", settings=settings, cwd=ROOT, options=options)
        )
        self._stack = stack
        self.peer = self.connect(CUT)
        self.session = self.peer.open_session()

    def connect(self, index: int) -> WsPeer:
        """Open a connection over one of the links."""
        port = urlsplit(self.server.url).port
        assert port is not None
        peer = WsPeer.connect(self.link.url(index, port))
        self._stack.callback(peer.close)
        return peer

    def come_back(self, within: float) -> WsPeer:
        """Try to resume over the other link as a real client does, until it succeeds."""
        peer = self.connect(WHOLE)

        def resumed() -> bool:
            try:
                return peer.open_session(self.session) == self.session
            except RemoteError as error:
                if error.code != ALREADY_ATTACHED:
                    raise
                return False

        begun = time.monotonic()
        wait_until(resumed, within)
        print(f"resumed after {time.monotonic() - begun:.1f} s")  # noqa: T201 - shown when a test fails
        return peer


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what a test has opened."""
    with ExitStack() as opened:
        yield opened


def idle(scene: Scene) -> None:
    """Have nothing on its way when the link is cut."""
    start(scene.peer, "p", "echo ready; exec sleep 100")
    output_until(scene.peer, "p", b"ready")


def streaming(scene: Scene) -> None:
    """Have output on its way all the time."""
    start(scene.peer, "p", "while :; do echo line; sleep 0.01; done")
    output_until(scene.peer, "p", b"line\nline\n")


def full(scene: Scene) -> None:
    """Have a client that has not read for a while: its window is closed."""
    Producer(scene.peer, 1024**3).wait_until_blocked()


def asleep(scene: Scene) -> None:
    """Have a client that has not read for long: the kernel asks it ever more rarely whether it lives."""
    full(scene)
    helper = scene.connect(WHOLE)
    helper.open_session()
    for number in range(2):
        run(helper, f"clock{number}", ["sleep", "20"])


Before = Callable[[Scene], None]


def play(stack: ExitStack, before: Before, settings: dict[str, object], within: float) -> None:
    """Cut the link in some situation and come back."""
    scene = Scene(stack, OURS, settings)
    before(scene)
    scene.link.cut()
    back = scene.come_back(within)
    assert terminate(back, "p")


@pytest.mark.parametrize("before", [idle, streaming])
def test_the_session_of_a_dead_peer_is_free_again(stack: ExitStack, before: Before) -> None:
    play(stack, before, SHORT, SHORT_S)


@pytest.mark.long
@pytest.mark.parametrize("before", [idle, streaming, full])
def test_the_session_of_a_dead_peer_is_free_again_in_20_seconds(stack: ExitStack, before: Before) -> None:
    play(stack, before, {}, PROMISED_S)


@pytest.mark.long
@pytest.mark.skipif(KERNEL < (6, 15), reason=f"Linux {KERNEL} asks a sleeping peer ever more rarely")
def test_the_session_of_a_dead_peer_that_slept_is_free_again_in_20_seconds(stack: ExitStack) -> None:
    play(stack, asleep, {}, PROMISED_S)
