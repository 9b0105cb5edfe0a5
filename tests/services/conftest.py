"""What tests of the services share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from execserver.core.process_state import SandboxNote
from execserver.services.launch.spawner import SpawnSpec
from tests.services.fakes import FakeSpawner
from tests.services.played import Play, Played
from tests.support.greenlets import loop_failures, turns

__all__ = ["loop_failures"]


@pytest.fixture
def fake_spawner() -> Iterator[FakeSpawner]:
    """Processes that a test plays; those still running are ended after it."""
    made = FakeSpawner()
    yield made
    made.end()


@pytest.fixture
def play(fake_spawner: FakeSpawner) -> Iterator[Play]:
    """Start a played process; whatever is left of it is ended after the test."""
    made: list[Played] = []

    def start(
        *,
        tty: bool = False,
        pipe_stdin: bool = False,
        begin: bool = True,
        sandbox: SandboxNote | None = None,
    ) -> Played:
        what = SpawnSpec([b"x"], {}, b"/", tty=tty, pipe_stdin=pipe_stdin)
        made.append(Played(fake_spawner, what, sandbox))
        if begin:
            made[-1].process.begin()
            turns()
        return made[-1]

    yield start
    fake_spawner.signal_failure = None
    for each in made:
        each.sink.close()
        each.process.begin()
        each.process.end()
        each.far.end() if not each.far.child.exited else each.far.close()
        assert each.closed == 1
