"""Strings and arguments in another process's memory, as the kernel would read them."""

from __future__ import annotations

import ctypes
import errno
import os
import tracemalloc
from collections.abc import Iterator

import pytest

from execserver.zygote.supervision.trap.process_memory import (
    MOST_STRINGS,
    PATH_BYTES,
    STRING_BYTES,
    TOTAL_BYTES,
    Memory,
)


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Return this process's own memory."""
    found = Memory(os.getpid())
    yield found
    found.close()


def vector(*words: bytes) -> tuple[int, object]:
    """Return the address of an array of strings, and what keeps it alive."""
    array = (ctypes.c_char_p * (len(words) + 1))(*words)
    return ctypes.addressof(array), array


def number_of(error: pytest.ExceptionInfo[OSError]) -> str:
    return errno.errorcode[error.value.errno or 0]


def test_strings_are_read_as_they_are(memory: Memory) -> None:
    words = [b"", b"x", b"\xff\n" * 700, b"y" * (STRING_BYTES - 1), *(b"%d" % n for n in range(3000))]
    address, kept = vector(*words)
    assert memory.strings(address) == tuple(words)
    assert memory.strings(0) == ()
    del kept


def test_strings_read_at_once_may_be_any_parts_of_the_memory(memory: Memory) -> None:
    buffer = ctypes.create_string_buffer(b"name=value\0other=1\0")
    start = ctypes.addressof(buffer)
    array = (ctypes.c_uint64 * 5)(start + 11, start, start + 5, start + 10, 0)
    assert memory.strings(ctypes.addressof(array)) == (b"other=1", b"name=value", b"value", b"")
    buffer[5] = b"V"
    assert memory.strings(ctypes.addressof(array)) == (b"other=1", b"name=Value", b"Value", b"")


def test_what_was_read_ahead_is_not_kept(memory: Memory) -> None:
    """A caller that is held for long, or hundreds of them, would cost many times what their strings take."""
    area = ctypes.create_string_buffer(8 * 1024 * 1024)
    count = len(area) // 128  # close enough together to be read at once
    start = ctypes.addressof(area)
    array = (ctypes.c_uint64 * (count + 1))(*range(start, start + count * 128, 128), 0)
    tracemalloc.start()
    try:
        found = memory.strings(ctypes.addressof(array))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert found == (b"",) * count
    assert held < 2 * 1024 * 1024


def test_many_pointers_to_one_long_string_take_no_more_than_the_limit(memory: Memory) -> None:
    """Who is supervised could else have its supervisor take 8 GiB."""
    area = ctypes.create_string_buffer(b"x" * (62 * 1024 + 500) + b"\0" * 2048)
    start, count = ctypes.addressof(area), 4000
    array = (ctypes.c_uint64 * (count + 2))(*[start] * count, start + 62 * 1024, 0)
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match="Argument list too long") as error:
            memory.strings(ctypes.addressof(array))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert number_of(error) == "E2BIG"
    assert peak < 2 * TOTAL_BYTES


@pytest.mark.parametrize(
    ("word", "wanted"), [(b"x" * (PATH_BYTES - 1), None), (b"x" * PATH_BYTES, "ENAMETOOLONG")]
)
def test_paths_have_the_kernels_limit(memory: Memory, word: bytes, wanted: str | None) -> None:
    buffer = ctypes.create_string_buffer(word)
    if wanted is None:
        assert memory.path(ctypes.addressof(buffer)) == word
        return
    with pytest.raises(OSError) as error:
        memory.path(ctypes.addressof(buffer))
    assert number_of(error) == wanted


def test_arguments_have_the_kernels_limits(memory: Memory) -> None:
    address, kept = vector(b"x" * STRING_BYTES)
    with pytest.raises(OSError) as error:
        memory.strings(address)
    assert number_of(error) == "E2BIG"
    # Elsewhere: the reader remembers a piece of what a trapped thread cannot change.
    address, kept_too = vector(*[b"x" * (STRING_BYTES - 1)] * (TOTAL_BYTES // STRING_BYTES + 1))
    with pytest.raises(OSError) as error:
        memory.strings(address)
    assert number_of(error) == "E2BIG"
    del kept, kept_too


def test_many_strings_in_any_order_are_read_but_not_any_number(memory: Memory) -> None:
    words = [b"name%d" % number for number in range(50_000)]
    kept = [ctypes.create_string_buffer(word) for word in words]
    order = sorted(range(len(words)), key=lambda number: words[number][::-1])
    array = (ctypes.c_uint64 * (len(words) + 1))(*(ctypes.addressof(kept[number]) for number in order))
    assert memory.strings(ctypes.addressof(array)) == tuple(words[number] for number in order)
    too_many = MOST_STRINGS + 5_000
    array = (ctypes.c_uint64 * (too_many + 1))(*[ctypes.addressof(kept[0])] * too_many)
    with pytest.raises(OSError) as error:
        memory.strings(ctypes.addressof(array))
    assert number_of(error) == "E2BIG"


def test_strings_around_a_hole_in_the_memory_are_read(memory: Memory) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    pages = libc.mmap(None, ctypes.c_size_t(4 * 4096), 3, 0x22, -1, ctypes.c_long(0))
    assert [libc.munmap(pages + at, 4096) for at in (4096, 3 * 4096)] == [0, 0]
    places = {b"first": pages, b"second": pages + 100, b"third": pages + 8192, b"last": pages + 3 * 4096 - 5}
    for string, place in places.items():
        ctypes.memmove(place, string + b"\0", len(string) + 1)
    order = [b"last", b"first", b"third", b"second"]
    array = (ctypes.c_uint64 * 5)(*(places[string] for string in order))
    assert memory.strings(ctypes.addressof(array)) == tuple(order)
    ctypes.memset(pages + 2 * 4096, 1, 4096)
    with pytest.raises(OSError) as error:
        memory.strings(ctypes.addressof(array))
    assert number_of(error) == "EFAULT"
    for page in (pages, pages + 8192):
        assert libc.munmap(page, 4096) == 0


@pytest.mark.parametrize("address", [1, 4096, (1 << 47) - 4096, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_bad_addresses_are_faults(memory: Memory, address: int) -> None:
    for read in (memory.path, memory.strings):
        with pytest.raises(OSError) as error:
            read(address)
        assert number_of(error) == "EFAULT"
