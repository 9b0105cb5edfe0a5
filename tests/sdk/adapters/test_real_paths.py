"""Where a path really leads on a box: with a real server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from execserver_adapters._real_paths import below, real_path
from execserver_client import Box, RequestFailed
from tests.sdk.boxes import with_box


def led(url: str, *paths: str | Path) -> list[str]:
    """Return where paths lead; of one that leads nowhere, the reason."""
    found: list[str] = []

    async def ask(box: Box) -> None:
        for path in paths:
            try:
                found.append(await real_path(box, str(path), None))
            except ValueError as error:
                found.append(f"refused: {error}")

    use: Callable[[Box], Awaitable[None]] = ask
    with_box(url, use)
    return found


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/src", "/src", True),
        ("/src/a", "/src", True),
        ("/srcshop", "/src", False),
        ("/", "/src", False),
        ("/anything", "/", True),
        ("/", "/", True),
    ],
)
def test_below_is_a_matter_of_whole_names(path: str, root: str, expected: bool) -> None:
    assert below(path, root) is expected


def test_links_are_followed_also_in_the_middle_and_before_two_dots(url: str, tmp_path: Path) -> None:
    real = tmp_path.resolve()
    (real / "there" / "deep").mkdir(parents=True)
    (real / "there" / "file").touch()
    (real / "link").symlink_to(real / "there" / "deep")
    (real / "chain").symlink_to("link")
    (real / "to-file").symlink_to("there/file")
    deep, file = f"{real}/there/deep", f"{real}/there/file"
    assert led(url, real / "link", real / "chain", real / "to-file", real / "there") == [
        *(deep, deep, file),
        f"{real}/there",
    ]


def test_what_does_not_exist_yet_is_kept_behind_the_links_that_do(url: str, tmp_path: Path) -> None:
    real = tmp_path.resolve()
    (real / "outside").mkdir()
    (real / "away").symlink_to("outside")
    (real / "file").touch()
    new = led(url, real / "new", real / "a" / "b" / "c", real / "away" / "new" / "file", f"{real}/x/../y")
    assert new == [f"{real}/new", f"{real}/a/b/c", f"{real}/outside/new/file", f"{real}/y"]


def test_a_link_that_leads_nowhere_is_refused_wherever_it_is(url: str, tmp_path: Path) -> None:
    real = tmp_path.resolve()
    (real / "nowhere").symlink_to(real / "missing")
    (real / "second").symlink_to("nowhere")
    (real / "odd\x1b[31m\nname").symlink_to("missing")
    wrong = led(url, real / "nowhere", real / "second", real / "nowhere" / "file", real / "odd\x1b[31m\nname")
    for told in wrong:
        assert told.startswith("refused: a link that leads nowhere")


def test_links_in_a_circle_are_an_error_and_no_endless_search(url: str, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(RequestFailed):
        led(url, tmp_path / "one" / "file")


def test_a_file_in_the_place_of_a_folder_is_an_error(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestFailed):
        led(url, tmp_path / "file" / "below")
