"""Entry point of the zygote: the process that starts and reaps all commands.

It is exec'ed with an empty environment, in a session of its own, with the server's socket as descriptor 3.
The last argument is the soft limit of open files for its children; if there is one before it, that is the
server's XDG_RUNTIME_DIR.
"""

from __future__ import annotations

import _socket
import os
import resource
import sys

SERVER_SOCKET = 3


def main() -> int:
    """Serve the server's requests until its socket ends, then end every descendant."""
    from execserver.runtime_paths import ExecServerRuntimePaths
    from execserver.zygote.libc import Libc
    from execserver.zygote.loop import Zygote
    from execserver.zygote.oom_score import OomScore

    _restore_soft_nofile(int(sys.argv[-1]))
    _close_others()
    os.set_inheritable(SERVER_SOCKET, False)
    os.chdir("/")  # no folder is kept from being unmounted
    libc = Libc()
    oom_score = OomScore()  # while this process may still open the file
    # Processes of the same user must not look into a process whose forks build sandboxes.
    libc.set_undumpable()
    # Orphans of commands become its children, so that at the end it finds and kills every one of them.
    libc.set_child_subreaper()
    runtime_dir = os.fsencode(sys.argv[1]) if len(sys.argv) > 2 else None
    program = ExecServerRuntimePaths.sandbox_program()
    Zygote(
        _socket.socket(fileno=SERVER_SOCKET),
        libc,
        runtime_dir,
        oom_score=oom_score,
        sandbox_program=program,
    ).run()
    return 0


def _restore_soft_nofile(soft: int) -> None:
    """Undo the server's raise of its soft limit: commands get the one that the server was started with."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and not 0 <= soft <= hard:
        soft = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _close_others() -> None:
    """Close what the server's own starter left open: commands must have stdio only."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > SERVER_SOCKET:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.exit(main())
