"""The picture in the README: what the recording shows, with verbs that exist, and text only."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from execserver.dispatch import VERBS
from tests.support.source import ROOT
from tools.terminal_svg import Cast, Piece, loaded, svg

CAST = (ROOT / "docs" / "shell.cast").read_text()
PICTURE = (ROOT / "docs" / "shell.svg").read_text()
SVG = "{http://www.w3.org/2000/svg}"


def rows(picture: str) -> list[str]:
    """Return the text of each row."""
    found = ElementTree.fromstring(picture).iter(f"{SVG}g")
    return ["".join(row.itertext()) for row in found]


def test_the_picture_is_that_of_the_recording() -> None:
    assert svg(loaded(CAST)) == PICTURE
    assert loaded(CAST).dumped() == CAST


def test_the_picture_is_small_text_and_nothing_else() -> None:
    assert len(PICTURE) < 100 * 1024
    kinds = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(PICTURE).iter()}
    assert kinds == {"svg", "style", "rect", "g", "text"}
    assert not re.search(r"href|url\(|@import", PICTURE)


def test_what_is_typed_exists() -> None:
    typed = [row.partition(" execserver ")[2].split() for row in rows(PICTURE) if "$ execserver" in row]
    verbs = [words[0] for words in typed]
    assert verbs == ["--listen", "box", "cp", "run", "run", "attach", "ps", "shell"]
    assert set(verbs[1:]) <= set(VERBS)


def test_the_readme_shows_it() -> None:
    assert "](docs/shell.svg)" in (ROOT / "README.md").read_text()


def test_lines_appear_when_they_were_printed_and_are_text() -> None:
    pieces = [Piece(0.5, "$ ls\r\n"), Piece(2.25, "\x1b[1;32ma<&>\x1b[0m b\r\n"), Piece(3.0, "$ ")]
    drawn = svg(Cast(20, 5, pieces))
    assert re.findall(r"animation-delay:([0-9.]+)s", drawn) == ["0.50", "2.25", "3.00"]
    assert [row.split() for row in rows(drawn)] == [["$", "ls"], ["a<&>", "b"], ["$"]]
    assert 'fill="#98c379" class="b">a&lt;&amp;&gt;</text>' in drawn


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="no asciicast of version 2"):
        loaded('{"version": 3, "term": {}}\n')
