"""dist/execserver.pyz: the program as a zip for machines with a Python, of one kind or of several.

__main__.py   finds or makes the unpacked tree
pyz_proof.py  compares it with the zip where that is needed
pyz_refusal.py  says why a Python is not served
trees         the interpreters it serves, and the names of their trees: hashes of what is in them
any/          what is the same for all of them
MACHINE-.../  what is the same for all on one kind of machine, where there are several: compiled modules
cp3.../       what is not: compiled modules
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from execserver.box.web.pages import CARRIED as CONSOLE
from execserver.verbs.licenses import PAGE
from tools.freeze import boot, console, licences, pyz_main, pyz_proof, pyz_refusal
from tools.freeze.archive import HASH_DIGITS
from tools.freeze.contents import CARRIED_HELPERS, HELPERS, PRODUCT_PACKAGES
from tools.freeze.wheels import PYTHONS, wheels_for
from tools.problems import Problem

FIRST_LINE = b"#!/usr/bin/env python3\n"
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX = 3

# Of no use to a running program; licences stay.
_LEFT_OUT_PARTS = frozenset({"tests", "testing", "__pycache__", "_vendor", "include"})
_LEFT_OUT_SUFFIXES = (".c", ".h", ".pyx", ".pxd", ".pyi", ".cpp", ".typed", ".exe", "/RECORD", "/WHEEL")
_LEFT_OUT_BEGINNING = "yaml/_yaml."  # PyYAML's parser in C, of 2 MiB for each Python, is not used


def make(root: Path, work: Path, machines: Sequence[str]) -> bytes:
    """Return the zipapp for some kinds of machines, named as `uname -m` does.

    Raises Problem when not even one Python of each can be served.
    """
    served = _served(root, work, machines)
    members = {f"{pyz_main.COMMON}/{name}": data for name, data in _product(root).items()}
    for tag, files in served.items():
        common, native, own = pyz_main.parts(tag)
        alike = [other for each, other in served.items() if native in pyz_main.parts(each)]
        for name, data in files.items():
            if all(other.get(name) == data for other in served.values()):
                place = common
            else:
                place = native if all(other.get(name) == data for other in alike) else own
            members[f"{place}/{name}"] = data
    members |= {f"{pyz_main.COMMON}/{CONSOLE}/{name}": data for name, data in console.carried(root).items()}
    page = licences.page([*licences.of_wheels(served.values()), *console.licence(root)])
    members[f"{pyz_main.COMMON}/{PAGE}"] = page.encode()
    for name in (pyz_proof.__file__, pyz_refusal.__file__):
        members[Path(name).name] = Path(name).read_bytes()
    members["__main__.py"] = Path(pyz_main.__file__).read_bytes()
    members[pyz_main.TREES_FILE] = "".join(f"{tag} {_name(members, tag)}\n" for tag in served).encode()
    return _zip(members)


def _served(root: Path, work: Path, machines: Sequence[str]) -> Mapping[str, dict[str, bytes]]:
    """Return what the wheels of each Python on each kind of machine would install, by its tag."""
    kinds = [(version, machine) for machine in machines for version in PYTHONS]
    pins = root / "requirements.txt"
    with ThreadPoolExecutor(len(PYTHONS)) as downloads:
        wheels = downloads.map(lambda kind: wheels_for(kind[0], kind[1], pins, work), kinds)
    by_tag = {
        f"cp{major}{minor}-{machine}-glibc": _files(found)
        for ((major, minor), machine), found in zip(kinds, wheels, strict=True)
    }
    served = {tag: files for tag, files in by_tag.items() if files}
    lacking = [each for each in machines if not any(f"-{each}-" in tag for tag in served)]
    if lacking:
        raise Problem(
            f"no wheels for {' and '.join(lacking)} could be downloaded for the zipapp",
            "connect to the network and build again",
        )
    return served


def _files(wheels: list[Path]) -> dict[str, bytes]:
    """Return what some wheels would install, name -> contents."""
    found = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                left_out = name.endswith(_LEFT_OUT_SUFFIXES) or name.startswith(_LEFT_OUT_BEGINNING)
                left_out = left_out or not _LEFT_OUT_PARTS.isdisjoint(name.split("/"))
                if not name.endswith("/") and not left_out:
                    found[name] = packed.read(name)
    return found


def _product(root: Path) -> dict[str, bytes]:
    files = {
        _place(path.relative_to(root)): path.read_bytes()
        for package in PRODUCT_PACKAGES  # what leads to the helpers of a checkout is replaced by them
        for path in (root / package).rglob("*.py")
    }
    files[pyz_main.START] = Path(boot.__file__).read_bytes()
    return files


def _place(path: Path) -> str:
    """Return where a file of the product goes."""
    folder, *rest = path.parts
    return "/".join((*CARRIED_HELPERS.split("."), *rest) if folder == HELPERS else path.parts)


def _name(members: dict[str, bytes], tag: str) -> str:
    """Return the name of the tree that an interpreter unpacks."""
    digest = hashlib.sha256()
    for name, data in sorted(members.items()):
        if name.partition("/")[0] in pyz_main.parts(tag):
            digest.update(b"%d %d %s" % (len(name), len(data), name.encode()) + data)
    return digest.hexdigest()[:HASH_DIGITS]


def _zip(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    made.write(FIRST_LINE)  # first, so that the offsets in the zip count it in
    with zipfile.ZipFile(made, "w") as packed:
        for name, data in sorted(members.items()):
            entry = zipfile.ZipInfo(name, _NO_TIME)
            entry.create_system, entry.external_attr = _UNIX, 0o600 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, data, compresslevel=9)
    return made.getvalue()
