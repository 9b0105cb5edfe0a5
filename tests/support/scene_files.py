"""The files and folders that the recorded calls touch."""

from __future__ import annotations

import os
from pathlib import Path

OLD = 1_600_000_000_123_999_999


def build_start_files(tmp: Path) -> None:
    """Make what process/start stumbles over: a file that may not be executed, and one that is no program."""
    (tmp / "file").write_text("plain")
    (tmp / "noexec").mkdir()
    (tmp / "noexec" / "script").write_text("#!/bin/sh\n")
    (tmp / "noexec" / "script").chmod(0o644)
    (tmp / "badfmt").write_bytes(b"this is no program\n")
    (tmp / "badfmt").chmod(0o755)


def build_fs_tree(tmp: Path) -> None:
    """Make a tree with every kind of file the fs/* calls tell apart."""
    (tmp / "f.txt").write_text("hello")
    (tmp / "empty").write_text("")
    (tmp / "tmpf").write_text("zzz")
    (tmp / "d" / "sub").mkdir(parents=True)
    (tmp / "d" / "a").write_text("A")
    (tmp / "d" / "a").chmod(0o640)
    (tmp / "d3").mkdir(mode=0o700)
    os.mkfifo(tmp / "d3" / "pipe")
    (tmp / "l-file").symlink_to("f.txt")
    (tmp / "l-dir").symlink_to("d")
    (tmp / "l-dang").symlink_to("nowhere")
    (tmp / "loop").symlink_to("loop")
    os.mkfifo(tmp / "fifo")
    odd = tmp / "sp ace" / "%41"
    odd.mkdir(parents=True)
    (odd / "\u00fc#?.txt").write_text("")
    Path(os.fsdecode(os.fsencode(tmp) + b"/bad\xff")).write_text("")
    mix = tmp / "mix"
    mix.mkdir()
    (mix / ".hidden").write_text("")
    (mix / "dlink").symlink_to("../d")
    os.mkfifo(mix / "fifo")
    (mix / "link").symlink_to("../f.txt")
    (mix / "dangling").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(mix) + b"/bad\xff")).write_text("")


def set_times(tmp: Path) -> None:
    """Give f.txt a time with a fraction of a millisecond, and the empty file one before 1970."""
    os.utime(tmp / "f.txt", ns=(OLD, OLD))
    os.utime(tmp / "empty", ns=(-5_000_000_000, -5_000_000_000))


def build_walk_tree(tmp: Path) -> None:
    """Make the tree of the fs/walk calls: a hidden folder, a nested one, a link to it, and things to skip."""
    d = tmp / "d"
    (d / ".hid").mkdir(parents=True)
    (d / ".hid" / "h").write_text("")
    (d / "a").write_text("A")
    (d / "sub" / "deep").mkdir(parents=True)
    (d / "sub" / "b").write_text("")
    (d / "sub" / "deep" / "c").write_text("")
    (d / "ls").symlink_to("sub")
    (d / "lf").symlink_to("a")
    os.mkfifo(d / "fifo")
