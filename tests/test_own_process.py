"""What a server sets for its own process: its collector and its allocator, where the C library lets it."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from execserver import own_process

SETTLE = """
import gc
from execserver import own_process
own_process.settle_collector()
print(gc.get_threshold(), gc.get_freeze_count() > 1000, gc.isenabled())
"""


def test_what_was_there_at_the_start_is_exempt_and_the_rest_is_collected_in_bounded_steps() -> None:
    done = subprocess.run([sys.executable, "-c", SETTLE], capture_output=True, text=True, check=True)
    assert done.stdout == "(10000, 10, 10) True True\n"


def test_a_c_library_without_these_calls_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    own_process.settle_allocator()
    own_process.return_free_memory()
    own_process.keep_freed_buffers()


def test_where_nobody_tells_what_is_kept_large_buffers_are_mapped_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, ...]] = []

    class Library:
        def mallopt(self, name: int, value: int) -> int:
            calls.append((name, value))
            return 1

        def malloc_trim(self, pad: int) -> int:
            calls.append((pad,))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    own_process.settle_allocator()
    own_process.return_free_memory()
    mib = 1024 * 1024
    assert calls == [(-3, 4 * mib), (-1, 16 * mib), (-8, 2), (0,)]


def test_what_moves_many_bytes_maps_no_buffer_of_a_piece_anew() -> None:
    source = """
import resource
from execserver import own_process
own_process.keep_freed_buffers()
def faults(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytes(size), bytes(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(1 << 20)
print(faults(1 << 20) < 50, faults(5 << 20) > 50)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_freed_buffers_are_kept_counted_and_returned() -> None:
    source = """
import os
from execserver import own_process
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
own_process.settle_allocator()
before = own_process.free_memory(), resident()
buffers = [b"x" * (20 << 20) for _ in range(4)]
held = resident()
del buffers
kept = own_process.free_memory(), resident()
own_process.return_free_memory()
after = resident()
print(held - before[1] >= 80, (kept[0] - before[0]) >> 20 >= 80, kept[1] >= held - 2, after <= before[1] + 8)
"""
    if own_process.free_memory() is None:
        pytest.skip("this C library does not say what it keeps")
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "True True True True\n"
