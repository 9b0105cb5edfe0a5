"""Standard input as a client of a box reads it: pipes, files, what is closed, a reader that is killed."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import gevent

from execserver.box.descriptors import Source


def test_a_pipe_is_read_as_bytes_come_while_others_run() -> None:
    reading, writing = os.pipe()
    with closing(Source(reading)) as source:
        taken = gevent.spawn(lambda: list(iter(source.read, b"")))
        for piece in (b"one", b"two"):
            gevent.sleep(0)
            os.write(writing, piece)
            gevent.sleep(0)
        os.close(writing)
        assert b"".join(taken.get(timeout=20)) == b"onetwo"
        assert source.read() == b""
    os.close(reading)


def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    file = os.open(tmp_path / "file", os.O_RDONLY)
    with closing(Source(file)) as source:
        assert [source.read(3), source.read(3), source.read(3)] == [b"123", b"45", b""]
    os.close(file)


def test_a_closed_descriptor_has_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    with closing(Source(reading)) as source:
        assert source.read() == b""


def test_who_is_killed_while_reading_leaves_the_bytes_to_the_next() -> None:
    reading, writing = os.pipe()
    with closing(Source(reading)) as source:
        reader = gevent.spawn(source.read)
        gevent.sleep(0)
        reader.kill()
        os.write(writing, b"x")
        assert source.read() == b"x"
    os.close(reading)
    os.close(writing)
