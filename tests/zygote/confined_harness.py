"""A zygote in a forked child, as root or as a user without any entry, that starts sandboxed processes."""

from __future__ import annotations

import _socket
import os
from collections.abc import Sequence

from execserver.sandbox.plan import ViewPlan
from execserver.sandbox.plan_record import encode_plan
from execserver.sandbox.syscalls import Kernel
from execserver.zygote.confined import Confinement
from execserver.zygote.launch import ZygoteProcess
from execserver.zygote.libc import Libc
from execserver.zygote.loop import Zygote as Loop
from execserver.zygote.records import Failed, Record, SpawnRequest, WorkerRequest
from tests.support.views import become
from tests.zygote.harness import PATH, Zygote


class ConfinedZygote(Zygote):
    """The same harness; the zygote has been forked instead of exec'ed, so that any user can run it."""

    def __init__(self, user: int = 0, kernel: Kernel | None = None, folder: bytes | None = None) -> None:
        process = _forked(user, kernel, folder)
        self.pid = process.pid
        self.sock = _socket.socket(fileno=process.sock_fd)
        self.sock.settimeout(10.0)
        self.early = []
        self._next_id = 0

    def ask(
        self,
        *argv: bytes,
        plan: ViewPlan | None = None,
        refusal: bytes = b"",
        seccomp: int = 0,
        back_end: int = 0,
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
        record = b"" if plan is None else encode_plan(plan)
        request = SpawnRequest(
            *(self._next_id, argv, env, cwd, arg0, slave, pipe_stdin, deadline_ns),
            *(record, refusal, seccomp, back_end),
        )
        self.send(request, descriptors)
        return self.answer(self._next_id)

    def ask_worker(self, plan: ViewPlan, descriptors: Sequence[int], back_end: int = 0) -> Record:
        """Ask for a file worker and return the answer."""
        self._next_id += 1
        self.send(WorkerRequest(self._next_id, encode_plan(plan), 0, back_end), descriptors)
        return self.answer(self._next_id)

    def __enter__(self) -> ConfinedZygote:
        return self

    def sh(self, script: str, **options: object) -> tuple[int, str, str]:
        """Run a shell script to its end; return exit code, or minus the signal, and the output and errors."""
        status, out, err = self.run(b"/bin/sh", b"-c", script.encode(), **options)  # type: ignore[arg-type]
        return os.waitstatus_to_exitcode(status), out.decode(), err.decode()

    def view_refusal(self, plan: ViewPlan, **options: object) -> str:
        """Ask for a process whose view cannot be made; return the reason."""
        failed = self.refusal(b"/bin/true", plan=plan, **options)
        assert isinstance(failed, Failed)
        return os.fsdecode(b" ".join(failed.details))


def _forked(user: int, kernel: Kernel | None, folder: bytes | None) -> ZygoteProcess:
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
        Loop(theirs, libc, None, Confinement(libc, kernel, folder)).run()
    finally:
        os._exit(0)
