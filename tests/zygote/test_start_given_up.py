"""A start of which the zygote has lost sight ends at once, with either init."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from execserver.sandbox.kernel import mounts
from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import WRITE
from execserver.sandbox.rootfs.recording import Recorded
from execserver.zygote.confine import plan_cache, sandbox_init
from execserver.zygote.confine.filter_template import Template
from execserver.zygote.records import Failed
from tests.support.proc import children_of, is_over
from tests.support.roots import in_child, mount, plan
from tests.support.sandbox_init import MAKERS, program_of
from tests.support.waiting import wait_until
from tests.zygote.confined_harness import ConfinedZygote

pytestmark = [
    pytest.mark.skipif(
        in_child(lambda: int(mounts.available(Kernel())) << 8).code == 0, reason="no mount API of Linux 5.12"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may see in which call another process is"),
]

NANOSLEEP = {"x86_64": 35, "aarch64": 101}[os.uname().machine]
LONG_ENOUGH = struct.pack("qq", 0, 300_000_000)  # for the zygote to be told, and to let go of its report


def pausing(prepare: Callable[..., object]) -> Callable[..., object]:
    """Have an init pause as the last thing it does before the command."""

    def prepared(*given: object, **named: object) -> object:
        root = prepare(*given, **named)
        if root is not None:
            kernel, end = root._kernel, root._end  # type: ignore[attr-defined]
            pause = (kernel.syscall, (NANOSLEEP, LONG_ENOUGH, None, 0, 0, 0, 0), None)
            root._end = Recorded(kernel, (*end._steps, pause), (*end._names, "nanosleep"))  # type: ignore[attr-defined]
        return root

    return prepared


def dying(ask: Callable[..., bytes]) -> Callable[..., bytes]:
    """Have a template die once its init pauses, before its answer is heard."""

    def asked(self: Template, messages: Callable[[], Sequence[object]], patience_ms: int | None) -> bytes:
        pid = struct.unpack("<ii", ask(self, messages, patience_ms))[0]
        call = Path(f"/proc/{pid}/syscall")
        wait_until(lambda: call.read_text().startswith(f"{NANOSLEEP} "))
        os.kill(self._pid, signal.SIGKILL)
        return b""

    return asked


@pytest.mark.parametrize("maker", MAKERS)
def test_a_start_whose_template_died_before_its_answer_does_not_run_on(
    maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_cache, "prepare", pausing(sandbox_init.prepare))
    monkeypatch.setattr(Template, "_ask", dying(Template._ask))
    null = os.open(os.devnull, os.O_RDWR)
    # The command is begun before the report that nobody takes, so it may take its first steps.
    view, script = plan(mount(WRITE, tmp_path)), b"sleep 2; echo > %b/made" % os.fsencode(tmp_path)
    with ConfinedZygote(0, folder=os.fsencode(tmp_path / "records"), program=program_of(maker)) as zygote:
        answer = zygote.ask(b"/bin/sh", b"-c", script, plan=view, descriptors=[null, null])
        assert isinstance(answer, Failed)
        assert answer.details == [b"cannot make namespaces: No child process"]
        wait_until(lambda: all(is_over(pid) for pid in children_of(zygote.pid)))
    os.close(null)
    assert not (tmp_path / "made").exists()
