"""A command that bubblewrap holds back until its network leads to proxies.

Bubblewrap starts the command when a descriptor can be read from, or has ended.  So what waits must be dead
before this process gives the start up; and it holds the other end itself, for when this process is killed.
"""

from __future__ import annotations

import errno
import os

from execserver.sandbox.proxy.joining import join_network
from execserver.zygote.confine.child import tying_to_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.confine.routing import Routing

_SIGKILL = 9


class HeldStart:
    """One start; `options` are for bubblewrap."""

    def __init__(self, kernel: Kernel, routing: Routing) -> None:
        self._kernel = kernel
        self._routing = routing
        held, self._release = os.pipe2(0)
        # The second is closed before the command is executed.
        self.options = [b"--block-fd", b"%d" % held, b"--sync-fd", b"%d" % self._release]

    def go(self, program: int, inside: int) -> None:
        """Listen in the network of the process `inside`, and let the command start.

        `program` is bubblewrap, a child of this process.  Raises OSError; both have ended then.
        """
        number = self._listen(inside)
        if number:
            # What waits inside has not asked the kernel yet to end with bubblewrap.
            os.kill(inside, _SIGKILL)
            os.kill(program, _SIGKILL)
            os.waitpid(program, 0)
            raise OSError(number, f"cannot listen in its network: {os.strerror(number)}", None)
        os.write(self._release, b"x")

    def _listen(self, inside: int) -> int:
        """Return the errno of what failed, else 0."""
        # In a process that ends: whoever enters the network stays there.
        tie = tying_to_parent(self._kernel)
        helper = os.fork()
        if helper == 0:
            number = errno.EIO
            try:
                tie()
                join_network(self._kernel, inside)
                self._routing.listen()
                number = 0
            except OSError as error:
                number = error.errno or errno.EIO
            finally:
                os._exit(number)
        return abs(os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]))
