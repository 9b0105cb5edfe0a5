"""The program with acknowledgements of records that wait longer: `-m bench.patient_program ARGUMENTS...`.

Under valgrind, on a machine that does other things too, a request takes longer than an acknowledgement waits
for a frame that carries it.  The timers that then run for each request cost an end of a stream up to a fifth
more, which it does not have to do for anybody who uses it.  Nor does a person's client show keys ahead, as on
a link so slow.
"""

from __future__ import annotations

import sys

_ACK_DELAY_S, _PROBE_S = 5.0, 10.0  # below the 20 s after which a silent peer is given up
_SLOW_S = 60.0


def wait_longer() -> None:
    """Have this process take longer for usual; before what uses these modules is imported."""
    from execserver.box.keys import local_echo  # late: who counts other rows does without them
    from execserver.wire import reliability

    vars(reliability).update(ACK_DELAY_S=_ACK_DELAY_S, PROBE_S=_PROBE_S)
    vars(local_echo).update(_SLOW_S=_SLOW_S)


def main() -> int:
    """Serve; return the exit status."""
    wait_longer()
    sys.argv[0] = "execserver"
    from execserver.dispatch import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
