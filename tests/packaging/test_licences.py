"""The built files have the licence text of everything they carry, and print it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from tests.support.one_file import Box
from tests.support.source import ROOT
from tools.environment import pins
from tools.freeze import licences
from tools.problems import Problem

SIZE_BOUND = 22 * 2**20
# Pinned for others, and left out of the one file (tools/freeze/contents.py).
NOT_IN_THE_ONE_FILE = {"pycparser", "typing_extensions"}
TEXT_STARTS = ("licenses/LICENSE", "LICENSE", "licenses/COPYING")


def page(box: Box) -> tuple[str, str]:
    """Return what a file lists as carried, and all that it prints."""
    done = box.run(["licenses"])
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode()
    return shown.partition("=" * 20)[0], shown


def distributions() -> dict[str, str]:
    """Return the pinned distributions, as `name version`, and a text of each."""
    found = {}
    for pin in pins([ROOT / "requirements.txt"]):
        about = importlib.metadata.distribution(pin.partition("==")[0])
        info = [file for file in about.files or () if ".dist-info/" in str(file)]
        texts = [file for file in info if str(file).partition("/")[2].startswith(TEXT_STARTS)]
        found[f"{about.metadata['Name']} {about.version}"] = texts[0].read_text()
    return found


@pytest.mark.unpacked
def test_every_distribution_has_its_text(box: Box) -> None:
    listed, shown = page(box)
    left_out = NOT_IN_THE_ONE_FILE if box.program.name == "execserver" else set()
    for name, text in distributions().items():
        carried = name.partition(" ")[0] not in left_out
        assert (f"\n  {name}: " in listed) is carried, name
        assert (text.strip("\n") in shown) or not carried, name
    for name in ("libev, in gevent", "c-ares, in gevent", "openssl ", "execserver "):
        assert f"\n  {name}" in listed
    assert (ROOT / "LICENSE").read_text().strip("\n") in shown


def test_python_and_every_library_have_theirs(one_file: Box) -> None:
    listed, shown = page(one_file)
    assert "\n  Python 3." in listed
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in shown
    for path in (one_file.tree / "lib").iterdir():
        assert path.name in listed or path.name.startswith(("libpython", "python3")), path.name
    for text in ("lgpl-2.1", "gpl-3.0", "gcc-exception-3.1", "zlib"):
        assert (licences.TEXTS / f"{text}.txt").read_text().strip("\n") in shown


def test_the_texts_leave_the_file_small(dist: Path) -> None:
    assert (dist / "execserver").stat().st_size < SIZE_BOUND


@pytest.mark.parametrize(
    ("licence", "texts"),
    [
        ("MIT", ["mit"]),
        ("MIT OR Apache-2.0", ["apache-2.0"]),
        ("Unlicense OR MIT", ["mit"]),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", ["apache-2.0", "unicode-3.0"]),
        ("Apache-2.0 WITH LLVM-exception", ["apache-2.0", "llvm-exception"]),
        ("LGPL-2.1-or-later AND glibc", ["lgpl-2.1", "glibc"]),
    ],
)
def test_an_expression_asks_for_texts(licence: str, texts: list[str]) -> None:
    assert licences.chosen(licence) == texts


def test_a_licence_without_a_text_stops_the_build() -> None:
    with pytest.raises(Problem, match="no text of the licence"):
        licences.chosen("Nobody-1.0")


def test_every_project_of_a_library_has_its_text() -> None:
    known = licences.of_libraries([f"{start}.so.1" for start in licences.LIBRARIES])
    assert all(part.texts for part in known)
    assert {"zlib", "OpenSSL", "SQLite"} <= {part.name.partition(" (")[0] for part in known}
