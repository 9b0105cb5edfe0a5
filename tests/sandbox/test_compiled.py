"""The compiled form of recorded sandbox roots: every step is there; what has no such form is Python's."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from execserver.sandbox.kernel import mounts
from execserver.sandbox.kernel.namespaces import Identity
from execserver.sandbox.kernel.syscalls import Kernel, number_of
from execserver.sandbox.plan import FILTER_RESTRICTED, HIDDEN_DIRECTORY, READ, WRITE, Missing, SandboxPlan
from execserver.sandbox.rootfs.compiled import MOST_BYTES, compiled
from execserver.sandbox.rootfs.recorded import GIVEN_CONSOLE, RecordedRoot
from execserver.zygote.confine.sandbox_init import prepare
from tests.support.roots import identity, in_child, mount, plan

pytestmark = pytest.mark.skipif(
    in_child(lambda: int(mounts.available(Kernel())) << 8).code == 0, reason="no mount API of Linux 5.12"
)

STEP = struct.Struct("<HHIq6Q")
HEAD = struct.Struct("<IIQII7II")
IDENTITY, COVER, FILTER = 4, 5, 7


def recorded(view: SandboxPlan) -> RecordedRoot:
    root = prepare(Kernel(), view, Identity(), True, [b"sys"])
    assert root is not None
    return root


def parts(message: bytes) -> tuple[list[list[tuple[int, ...]]], bytes]:
    """Return the steps of each part of a plan, and the data area."""
    kind, size, number, slot, covers, *counts, data_size = HEAD.unpack_from(message)
    assert (kind, size, number, slot, covers) == (2, len(message), 7, 3, covers)
    at, found = HEAD.size, []
    for count in counts:
        found.append([STEP.unpack_from(message, at + index * STEP.size) for index in range(count)])
        at += count * STEP.size
    assert at + data_size == len(message)
    return found, message[at:]


def test_every_step_of_the_recording_is_there_with_what_it_points_to(tmp_path: Path) -> None:
    root = recorded(plan(mount(WRITE, tmp_path), mount(READ, Path("/etc"))))
    form = compiled(root)
    assert form is not None
    found, data = parts(form.message(3, 7))
    assert [len(part) for part in found] == [len(part.steps) for part in root.parts]
    calls = 0
    for steps, part in zip(found, root.parts, strict=True):
        for (kind, pointers, number, expected, *words), (act, given, wanted) in zip(
            steps, part.steps, strict=True
        ):
            if kind > 1:
                assert not hasattr(act, "argtypes")
                continue
            calls += 1
            assert (number, kind) == (given[0], int(wanted is None))
            assert expected == (wanted or 0)
            for index, argument in enumerate(given[1:]):
                if argument is GIVEN_CONSOLE:
                    assert pointers >> index + 8 & 1
                elif isinstance(argument, int) or argument is None:
                    assert words[index] == (argument or 0) % (1 << 64)
                else:
                    content = bytes(argument)  # type: ignore[call-overload]
                    assert pointers >> index & 1
                    assert data[words[index] :].startswith(content + b"\0")
    assert calls > 100


def test_identities_are_those_of_the_plan_and_covers_are_the_starts(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    missing = (Missing(os.fsencode(tmp_path / "ws" / ".git"), identity(tmp_path / "ws"), True, True),)
    view = SandboxPlan("read-only", (mount(WRITE, tmp_path / "ws"),), missing)
    form = compiled(recorded(view))
    assert form is not None
    assert form.covers == 1
    found, _ = parts(form.message(3, 7))
    checked = [words[1:4] for part in found for kind, _, _, _, *words in part if kind == IDENTITY]
    assert checked == [list(identity(tmp_path / "ws"))]
    assert [words[0] for part in found for kind, _, _, _, *words in part if kind == COVER] == [0]


def test_a_filter_that_the_process_has_not_inherited_is_a_step_of_its_own() -> None:
    kernel = Kernel()
    root = prepare(kernel, plan(), Identity(), False, [b"sys"])
    form = None if root is None else compiled(root)
    assert form is not None
    found, data = parts(form.message(3, 7))
    *_, (kind, pointers, _, _, place, count, *_), last = found[-1]
    code = kernel.programs[FILTER_RESTRICTED]
    assert (kind, pointers, count * 8) == (FILTER, 1, len(code))
    assert data[place:].startswith(code)
    assert last[2] == number_of(kernel.machine, "close_range")  # nothing else comes behind it


def test_what_is_too_large_for_a_message_has_no_compiled_form(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50) / ("name" * 50)
    folder.mkdir(parents=True)
    many = []
    for number in range(60):
        (folder / f"{number}{'x' * 200}").mkdir()
        many.append(mount(HIDDEN_DIRECTORY, folder / f"{number}{'x' * 200}"))
    form = compiled(recorded(plan(*many[:2])))
    assert form is not None
    assert len(form.message(3, 7)) < MOST_BYTES
    assert compiled(recorded(plan(*many))) is None


def test_a_step_that_the_compiled_init_does_not_know_leaves_it_to_python() -> None:
    kernel = Kernel()
    real = kernel.syscall
    kernel.syscall = lambda *call: int(real(*call))  # type: ignore[assignment]
    root = prepare(kernel, plan(), Identity(), True, [b"sys"])
    assert root is not None
    assert compiled(root) is None
