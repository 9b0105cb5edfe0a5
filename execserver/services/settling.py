"""What a process that serves sets for itself, before anything else of the server is made."""

from __future__ import annotations

import sys

import gevent

from execserver import name_services
from execserver.own_process import raise_open_files_limit, settle_allocator
from execserver.zygote.libc import Libc

# Python's switch interval, which gevent uses, too: how long greenlets that only yield may switch among
# themselves before the loop polls for input again.  At the default of 5 ms a flood delays all keystrokes by
# as much: the 90th percentile of a small request was 5 to 7 ms, and is 0.5 to 2.5 now.
_TURN_S = 0.0002


def settle() -> None:
    """Set all of it."""
    gevent.config.track_greenlet_tree = False  # costs time at each spawn, and nothing uses it
    Libc().set_undumpable()  # commands must not read this process's memory or environment from /proc
    sys.setswitchinterval(_TURN_S)
    raise_open_files_limit()
    settle_allocator()
    name_services.use_built_in_ones()
