"""What the launcher does with file requests, in C that watches its memory: any error of it is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packaging import test_plain_changes as changes
from tests.packaging import test_plain_requests as looks
from tests.support.source import ROOT

pytestmark = pytest.mark.long

PARTS = ("plain", "request", "json", "base64", "looking", "changing", "copying")
LEFT = 125
DRIVER = f'#include "plain.h"\nint main(void) {{ int s = answer_plainly(); return s < 0 ? {LEFT} : s; }}\n'
WATCHED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")

ground = looks.ground


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The launcher's part that answers file requests."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no gcc or clang")
    made = tmp_path_factory.mktemp("watched") / "plain"
    sources = [str(ROOT / "launcher" / f"{part}.c") for part in PARTS]
    words = [compiler, *WATCHED, f"-I{ROOT / 'launcher'}", *sources, "-x", "c", "-", "-o", str(made)]
    done = subprocess.run(words, input=DRIVER.encode(), capture_output=True, check=False)
    if b"cannot find" in done.stderr and b"asan" in done.stderr:
        pytest.skip("the compiler has no library to watch memory with")
    assert done.returncode == 0, done.stderr.decode()
    return made


def played(watched: Path, request: bytes) -> None:
    """Put a request to it; whatever it makes of that, its memory is whole."""
    done = subprocess.run([watched], input=request, capture_output=True, timeout=60, check=False)
    assert (done.returncode in (0, LEFT), done.stderr) == (True, b"")


@st.composite
def torn(draw: st.DrawFn) -> bytes:
    """A request that looks, cut somewhere or with other bytes in it."""
    request = draw(looks.requests())
    begin = draw(st.integers(0, len(request)))
    end = draw(st.integers(begin, len(request)))
    return request[:begin] + draw(st.binary(max_size=8)) + request[end:]


@given(looks.requests() | torn())
def test_looking_reads_and_writes_nothing_else(watched: Path, ground: Path, text: bytes) -> None:
    played(watched, text.replace(b"/GROUND", os.fsencode(ground)))


@given(changes.requests())
def test_changing_reads_and_writes_nothing_else(
    watched: Path, tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    place = tmp_path_factory.getbasetemp() / "watched-changes"
    changes.made(place)
    played(watched, text.replace(b"/GROUND", os.fsencode(place)))
    shutil.rmtree(place)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 300_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_a_request_of_any_size_is_read_within_bounds(watched: Path, size: int) -> None:
    played(watched, b'{"operation":"fs/readFile","params":{"path":"/' + b"x" * size + b'"}}')
