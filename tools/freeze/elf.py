"""What a 64-bit little-endian ELF file says about itself: loader, name, libraries it needs, alignment."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_SONAME = 0, 1, 5, 14


class NotElf(ValueError):
    """The file is none, or one of another word size or byte order."""


class Elf(NamedTuple):
    """`machine` is the ABI's number (62: x86-64, 183: aarch64); `loader` is None for a library.

    `alignment` is the largest size of pages, in bytes, with which all of it can be loaded.
    """

    machine: int
    loader: str | None
    soname: str | None
    needed: tuple[str, ...]
    alignment: int


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    align: int


def is_elf(path: Path) -> bool:
    """Tell whether a file is one this module reads."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_elf(path: Path) -> Elf:
    """Return what a file says; raises NotElf."""
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        raise NotElf(f"{path} is no 64-bit little-endian ELF file")
    machine, table, entry_size, entries = struct.unpack_from("<18xH12xQ14xHH", data)
    segments = [
        _Segment(*struct.unpack_from("<IIQQQQQQ", data, table + number * entry_size))
        for number in range(entries)
    ]
    loader = None
    dynamic: list[tuple[int, int]] = []
    for segment in segments:
        if segment.kind == _PT_INTERP:
            loader = _text(data, segment.offset)
        elif segment.kind == _PT_DYNAMIC:
            dynamic = list(
                struct.iter_unpack("<qQ", data[segment.offset : segment.offset + segment.file_size])
            )
    strings = next((_offset(value, segments) for tag, value in dynamic if tag == _DT_STRTAB), 0)
    named: dict[int, list[str]] = {_DT_NEEDED: [], _DT_SONAME: []}
    for tag, value in dynamic:
        if tag == _DT_NULL:
            break
        if tag in named:
            named[tag].append(_text(data, strings + value))
    alignment = min((segment.align for segment in segments if segment.kind == _PT_LOAD), default=0)
    return Elf(machine, loader, next(iter(named[_DT_SONAME]), None), tuple(named[_DT_NEEDED]), alignment)


def _offset(address: int, segments: list[_Segment]) -> int:
    for segment in segments:
        if segment.kind == _PT_LOAD and 0 <= address - segment.address < segment.file_size:
            return address - segment.address + segment.offset
    return address


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(0, start)].decode()
