"""The boxes file: what a person wrote stays, what others could have written is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from execserver.box import book
from execserver.box.address import BadBox
from execserver.box.book import BookError, Entry

HAND_WRITTEN = (
    '# mine\n[boxes.one]\nurl = "ws://127.0.0.1:1"  # the first\n\n[boxes."two"]\nurl = "ssh:two"\n'
)
NOWHERE, NO_FILE = partial(os.symlink, "gone/x"), partial(os.symlink, ".")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the file is to be, in a folder that is not there yet."""
    return str(tmp_path / "config" / "boxes.toml")


def test_a_box_is_found_by_its_name(path: str) -> None:
    assert book.entries(path) == {}
    one = Entry("one", "wss://h/\u00fc", token="t", ca_file='/a "b"')
    two = Entry("two", "ssh:two", token_file="/t")
    book.add(path, one)
    book.add(path, two)
    assert book.entries(path) == {"one": one, "two": two}
    assert os.stat(path).st_mode & 0o777 == 0o600
    book.remove(path, "one")
    assert book.entries(path) == {"two": two}


def test_what_a_person_wrote_around_them_stays(path: str) -> None:
    os.makedirs(os.path.dirname(path), 0o700)
    Path(path).write_text(HAND_WRITTEN)
    os.chmod(path, 0o600)
    book.add(path, Entry("three", "ssh:three"))
    book.remove(path, "two")
    assert Path(path).read_text() == '# mine\n[boxes.one]\nurl = "ws://127.0.0.1:1"  # the first\n\n' + (
        '\n[boxes."three"]\nurl = "ssh:three"\n'
    ).lstrip("\n") or Path(path).read_text().startswith("# mine\n[boxes.one]")
    assert [*book.entries(path)] == ["one", "three"]


@pytest.mark.parametrize("text", ['boxes = { one = { url = "ssh:one" } }\n', 'boxes.one.url = "ssh:one"\n'])
def test_a_form_that_cannot_be_changed_safely_is_left_alone(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), 0o700)
    Path(path).write_text(text)
    os.chmod(path, 0o600)
    with pytest.raises(BookError, match="cannot change safely"):
        book.remove(path, "one")
    assert Path(path).read_text() == text


@pytest.mark.parametrize("which", ["file", "folder"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_is_refused(path: str, which: str, mode: int) -> None:
    book.add(path, Entry("one", "ssh:one"))
    spoilt = path if which == "file" else os.path.dirname(path)
    os.chmod(spoilt, os.stat(spoilt).st_mode | mode)
    with pytest.raises(BookError, match="others may write") as refused:
        book.entries(path)
    assert refused.value.cure == f"chmod go-w {spoilt}"
    with pytest.raises(BookError, match="others may write"):
        book.add(path, Entry("two", "ssh:two"))


def test_a_token_that_others_can_read_is_refused(path: str) -> None:
    book.add(path, Entry("one", "ssh:one"))
    os.chmod(path, 0o644)
    assert [*book.entries(path)] == ["one"]
    book.add(path, Entry("two", "wss://h", token="secret"))  # the new file is private
    assert [*book.entries(path)] == ["one", "two"]
    os.chmod(path, 0o644)
    with pytest.raises(BookError, match="others may read it") as refused:
        book.entries(path)
    assert "secret" not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_the_file_of_another_user_is_refused(path: str) -> None:
    book.add(path, Entry("one", "ssh:one"))
    os.chown(path, 12345, 12345)
    with pytest.raises(BookError, match="another user"):
        book.entries(path)


@pytest.mark.parametrize(
    "text",
    [
        "[boxes.one]\n",
        "[boxes.one]\nurl = 1\n",
        '[boxes.one]\nurl = "ssh:one"\nunknown = "x"\n',
        '[boxes.one]\nurl = "ssh:one"\ntoken = "a\\u001b"\n',
        '[boxes.one]\nurl = "ssh:one"\ntoken = "a"\ntoken-file = "b"\n',
        '[boxes."-one"]\nurl = "ssh:one"\n',
        '[other]\nurl = "ssh:one"\n',
        "no toml",
        "[" * 5000,
        "#" + "x" * book.MAX_BYTES,
        "\n".join(f'[boxes.b{number}]\nurl = "ssh:b"' for number in range(book.MAX_BOXES + 1)),
    ],
    ids=range(11),
)
def test_what_is_not_understood_is_refused(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), 0o700)
    Path(path).write_text(text)
    os.chmod(path, 0o600)
    with pytest.raises(BookError) as refused:
        book.entries(path)
    assert refused.value.cure


def test_a_fifo_in_its_place_hangs_nobody(path: str) -> None:
    os.makedirs(os.path.dirname(path), 0o700)
    os.mkfifo(path, 0o600)
    with pytest.raises(BookError, match="not a regular file"):
        book.entries(path)


def test_a_directory_in_its_place_is_told(path: str) -> None:
    os.makedirs(path, 0o700)
    with pytest.raises(BookError, match="cannot be read: Is a directory"):
        book.entries(path)


def test_nothing_is_put_into_a_folder_that_others_can_write_to(path: str) -> None:
    folder = os.path.dirname(path)
    os.makedirs(folder, 0o700)
    os.chmod(folder, 0o770)
    with pytest.raises(BookError, match="others may write"):
        book.add(path, Entry("one", "ssh:one", token="t"))
    assert os.listdir(folder) == []  # nor is there a lock that somebody else could hold for ever


def test_a_link_in_its_place_stays_and_the_file_behind_it_is_changed(path: str, tmp_path: Path) -> None:
    """As people have it who keep their settings elsewhere."""
    kept = tmp_path / "kept"
    kept.mkdir(0o700)
    book.add(str(kept / "boxes.toml"), Entry("one", "ssh:one"))
    os.makedirs(os.path.dirname(path), 0o700)
    os.symlink(kept / "boxes.toml", path)
    book.add(path, Entry("two", "ssh:two"))
    book.remove(path, "one")
    assert os.readlink(path) == str(kept / "boxes.toml")
    assert [*book.entries(str(kept / "boxes.toml"))] == ["two"]
    os.chmod(kept, 0o777)
    with pytest.raises(BookError, match="others may write"):
        book.add(path, Entry("three", "ssh:three"))


def test_a_link_that_others_could_put_elsewhere_is_refused(path: str, tmp_path: Path) -> None:
    book.add(path, Entry("one", "ssh:one"))
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (open_to_all / "link").symlink_to(path)
    with pytest.raises(BookError, match="others may write"):
        book.entries(str(open_to_all / "link"))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, NOWHERE, NO_FILE])
@pytest.mark.parametrize("name", ["boxes.toml.lock", "boxes.toml.new", "boxes.toml"])
def test_whatever_is_in_the_place_of_its_files_hangs_nobody(
    name: str, make: Callable[[str], object], path: str
) -> None:
    os.makedirs(os.path.dirname(path), 0o700)
    make(os.path.join(os.path.dirname(path), name))
    with suppress(BookError):
        book.add(path, Entry("one", "ssh:one"))
        assert [*book.entries(path)] == ["one"]
    assert not os.path.exists(os.path.join(os.path.dirname(path), "gone"))


def test_names_and_urls_are_checked_before_anything_is_written(path: str) -> None:
    for entry in (Entry("-x", "ssh:x"), Entry("x", "nothing:x"), Entry('a"]', "ssh:x")):
        with pytest.raises(BadBox):
            book.add(path, entry)
    assert not os.path.exists(path)


def test_a_name_is_given_once(path: str) -> None:
    book.add(path, Entry("one", "ssh:one"))
    with pytest.raises(BookError, match="a box one already: ssh:one"):
        book.add(path, Entry("one", "ssh:two"))
    with pytest.raises(BookError, match="no box 'two'"):
        book.remove(path, "two")


def test_the_file_is_where_the_environment_says() -> None:
    assert book.default_path({"HOME": "/h"}) == "/h/.config/execserver/boxes.toml"
    assert book.default_path({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}) == "/c/execserver/boxes.toml"
    assert book.default_path({"EXECSERVER_BOXES": "/b"}) == "/b"
    with pytest.raises(BookError):
        book.default_path({})
