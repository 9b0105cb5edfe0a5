"""Back ends as a table of one shape, and what all that restrict themselves in place have in common."""

from __future__ import annotations

import _socket
import os
import signal
from contextlib import closing

import pytest

from execserver.sandbox.backends import landlock_only, selection
from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import FILTER_RESTRICTED
from execserver.zygote import confinement
from execserver.zygote.confine import table
from execserver.zygote.confinement import FILTER, KINDS, LANDLOCK, NATIVE, REFUSAL, Confinement, filtered
from execserver.zygote.records import Failed, Started
from execserver.zygote.stages import STAGE_ROOT
from tests.support.roots import USERS, plan
from tests.zygote.confined_harness import ConfinedZygote


def test_every_kind_of_confinement_has_a_back_end() -> None:
    assert set(table._BACK_ENDS) == set(KINDS)


def test_what_is_chosen_has_the_name_of_its_confinement() -> None:
    names = ("NATIVE", "BUBBLEWRAP", "LANDLOCK", "FILTER", "NOTHING")
    assert [getattr(selection, name) for name in names] == [getattr(confinement, name) for name in names]


@pytest.mark.parametrize("detail", [b"", b"nothing", b"\xff"])
def test_a_filter_that_is_none_is_refused(detail: bytes) -> None:
    with ConfinedZygote(USERS[-1]) as zygote:
        failed = zygote.refusal(b"/bin/true", confinement=Confinement(FILTER, detail=detail))
    assert (failed.stage, failed.details) == (STAGE_ROOT, [b"there is no such filter"])


@pytest.mark.parametrize("kind", [FILTER, REFUSAL])
def test_only_a_plan_confines_a_file_worker(kind: str) -> None:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    with ConfinedZygote(USERS[-1]) as zygote, closing(ours), closing(theirs):
        asked = filtered(FILTER_RESTRICTED) if kind == FILTER else confinement.refused("no")
        failed = zygote.ask_worker(asked, [theirs.fileno()])
    assert isinstance(failed, Failed)
    assert failed.stage == STAGE_ROOT


@pytest.mark.parametrize("kind", [NATIVE, LANDLOCK])
def test_a_file_worker_leads_a_group_and_is_killed_by_it(kind: str) -> None:
    if kind == LANDLOCK and landlock.abi(Kernel()) < landlock_only.LEAST_ABI:
        pytest.skip("this kernel has no Landlock of ABI 3 or newer")
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    with ConfinedZygote(USERS[-1]) as zygote, closing(ours):
        with closing(theirs):
            started = zygote.ask_worker(plan(), [theirs.fileno()], kind)
        assert isinstance(started, Started)
        assert zygote.signal(started.request_id, signal.SIGKILL).delivered
        assert zygote.exit_of(started.request_id).status == signal.SIGKILL


class Dying(Kernel):
    """A kernel under which whoever gives up privileges dies of it."""

    def call(self, name: str, *arguments: object) -> int:
        """End this process at the call that only a restricted child makes."""
        if name == "prctl" and arguments[:1] == (38,):
            os._exit(3)
        return super().call(name, *arguments)


def test_a_child_that_dies_before_it_is_restricted_was_not_started() -> None:
    with ConfinedZygote(USERS[-1], Dying()) as zygote:
        failed = zygote.refusal(b"/bin/true", confinement=filtered(FILTER_RESTRICTED))
        assert (failed.stage, failed.details) == (STAGE_ROOT, [b"its first process was killed"])
