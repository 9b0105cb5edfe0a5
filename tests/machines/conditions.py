"""What containers and hardened systems take away, as changes of a room (`room.py`)."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

from tests.machines.initramfs import Files, file, symlink
from tests.machines.system import USER_ID

_LIBRARIES = "opt/python"  # of the one program that needs a C library: what tries the file
_LOADER = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
_PYTHON = """#!/bin/sh
program=/usr/bin/python3.11
exec /{libraries}/{loader} --library-path /{libraries} --argv0 $program $program "$@"
"""
_NOEXEC_HOME = "mount -t tmpfs -o noexec,mode=700,uid={user} none {home}\n"


class Condition(NamedTuple):
    """One condition: its name on the page, a script that makes it, and what is changed of the files."""

    name: str
    before: str = ""
    change: Callable[[Files], Files] = dict


def without_libraries(files: Files) -> Files:
    """Return a system without a C library: its programs are static, as in an image with musl or none at all.

    The Python that tries the file has its own libraries, where nobody else looks.
    """
    kept: Files = {}
    for name, entry in files.items():
        path = PurePath(name)
        is_library = ".so" in path.name and path.parent.name in ("lib64", *_triples(files))
        if is_library and not (stat.S_ISLNK(entry.mode) and path.name in _LOADER.values()):
            kept[f"{_LIBRARIES}/{path.name}"] = entry
        elif not is_library and path.name != "bash":
            kept[name] = entry
    (loader,) = (name for name in _LOADER.values() if f"{_LIBRARIES}/{name}" in kept)
    python = _PYTHON.format(libraries=_LIBRARIES, loader=loader)
    return {**kept, "usr/bin/python3": file(python.encode(), 0o755), "usr/bin/bash": symlink("busybox")}


def _triples(files: Files) -> set[str]:
    return {PurePath(name).parent.name for name in files if name.endswith("/libc.so.6")}


CONDITIONS = (
    Condition("nothing taken away"),
    Condition("read-only /", "mount -t tmpfs none /tmp\nmount -o remount,bind,ro /\n"),
    Condition(
        "/tmp and HOME may not be executed from",
        "mount -t tmpfs -o noexec,mode=1777 none /tmp\n"
        + _NOEXEC_HOME.format(user=0, home="/root")
        + _NOEXEC_HOME.format(user=USER_ID, home="/home/person"),
    ),
    Condition("no /dev/shm", "umount /dev/shm\nrmdir /dev/shm\n"),
    Condition("no /sys", "umount /sys\nrmdir /sys\n"),
    Condition("no /proc/sys/user", "mount -t tmpfs -o ro none /proc/sys/user\n"),
    Condition("processes of others hidden (hidepid=2)", "mount -o remount,hidepid=2 /proc\n"),
    Condition("no C library but musl's or none", change=without_libraries),
)
