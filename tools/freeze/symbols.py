"""What only debuggers read of an ELF file, emptied: for kinds of machines whose `strip` is not here."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_ALLOC: Final = 2  # loaded with the program: never touched
_SYMTAB, _STRTAB = 2, 3
_SECTIONS_AT = 0x28  # in the head, where the table of sections is
_NUMBERS_AT = 0x3A  # and the size and number of its entries, and which section has their names
_DEBUG = b".debug"


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int


def emptied(data: bytes) -> bytes:
    """Return a 64-bit little-endian ELF file with zeros for its symbols and debug sections.

    Everything stays in its place, and what the dynamic linker reads as it is.  Zeros pack to nothing.
    """
    (table,) = struct.unpack_from("<Q", data, _SECTIONS_AT)
    entry_size, number, names_index = struct.unpack_from("<HHH", data, _NUMBERS_AT)
    sections = [
        _Section(*struct.unpack_from("<IIQQQQ", data, table + index * entry_size)) for index in range(number)
    ]
    if not sections:
        return data
    names = sections[names_index].offset
    result = bytearray(data)
    for index, section in enumerate(sections):
        is_symbols = section.kind in (_SYMTAB, _STRTAB) and index != names_index
        is_debug = data.startswith(_DEBUG, names + section.name)
        if (is_symbols or is_debug) and not section.flags & _ALLOC:
            result[section.offset : section.offset + section.size] = bytes(section.size)
    return bytes(result)
