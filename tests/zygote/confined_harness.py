"""A zygote in a forked child, as root or as a user without any entry, that starts sandboxed processes."""

from __future__ import annotations

import _socket
import os
import traceback
from collections.abc import Sequence
from pathlib import Path

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import SandboxPlan
from execserver.sandbox.plan_record import encode_plan
from execserver.zygote.confine.sandboxes import Sandboxes
from execserver.zygote.confinement import NATIVE, UNCONFINED, Confinement
from execserver.zygote.launch import ZygoteProcess
from execserver.zygote.libc import Libc
from execserver.zygote.loop import Zygote as Loop
from execserver.zygote.records import Failed, Record, SpawnRequest, WorkerRequest
from tests.support.roots import SELF, become, give
from tests.zygote.harness import PATH, Zygote


def records_folder(parent: Path, user: int) -> bytes:
    """Make the folder for a user's mask records; return its path."""
    records = parent / "records"
    records.mkdir(0o700)
    return os.fsencode(give(records, user))


class ConfinedZygote(Zygote):
    """The same harness; the zygote has been forked instead of exec'ed, so that any user can run it."""

    def __init__(
        self,
        user: int = SELF,
        kernel: Kernel | None = None,
        folder: bytes | None = None,
        program: bytes = b"",
    ) -> None:
        process = _forked(user, kernel, folder, program)
        self.pid = process.pid
        self.sock = _socket.socket(fileno=process.sock_fd)
        self.sock.settimeout(20)
        self.early = []
        self._next_id = 0

    def ask(
        self,
        *argv: bytes,
        plan: SandboxPlan | None = None,
        confinement: Confinement = UNCONFINED,
        back_end: str = NATIVE,
        env: Sequence[bytes] = (PATH,),
        cwd: bytes = b"/",
        arg0: bytes | None = None,
        slave: bytes = b"",
        descriptors: Sequence[int] = (),
        pipe_stdin: bool = False,
        deadline_ns: int = 0,
    ) -> Record:
        """Ask for a process, sandboxed or not, and return the answer."""
        self._next_id += 1
        if plan is not None:
            confinement = Confinement(back_end, encode_plan(plan))
        request = SpawnRequest(
            *(self._next_id, argv, env, cwd, arg0, slave, pipe_stdin, deadline_ns, confinement)
        )
        self.send(request, descriptors)
        return self.answer(self._next_id)

    def ask_worker(
        self, plan: SandboxPlan | Confinement, descriptors: Sequence[int], back_end: str = NATIVE
    ) -> Record:
        """Ask for a file worker and return the answer."""
        self._next_id += 1
        if isinstance(plan, SandboxPlan):
            plan = Confinement(back_end, encode_plan(plan))
        self.send(WorkerRequest(self._next_id, plan), descriptors)
        return self.answer(self._next_id)

    def __enter__(self) -> ConfinedZygote:
        return self

    def sh(self, script: str, **options: object) -> tuple[int, str, str]:
        """Run a shell script to its end; return exit code, or minus the signal, and the output and errors."""
        status, out, err = self.run(b"/bin/sh", b"-c", script.encode(), **options)  # type: ignore[arg-type]
        return os.waitstatus_to_exitcode(status), out.decode(), err.decode()

    def root_refusal(self, plan: SandboxPlan, **options: object) -> str:
        """Ask for a process whose view cannot be made; return the reason."""
        failed = self.refusal(b"/bin/true", plan=plan, **options)
        assert isinstance(failed, Failed)
        return os.fsdecode(b" ".join(failed.details))


def _forked(user: int, kernel: Kernel | None, folder: bytes | None, program: bytes) -> ZygoteProcess:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return ZygoteProcess(pid, ours.detach())
    try:
        ours.close()
        become(user)
        os.setsid()
        os.chdir("/")
        libc = Libc()
        libc.set_undumpable()
        libc.set_child_subreaper()
        Loop(theirs, libc, None, Sandboxes(libc, kernel, folder, program)).run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)
