"""Files in a real browser: editing, conflicts, uploads, downloads, and names that mean harm."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.box.web_ui.tab import Tab
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

IMAGE = b"<img src=x onerror=attacked=true>"
HOSTILE = [
    IMAGE,
    b"esc\x1b[31mred",
    b"turn\xe2\x80\xaefdp.exe",
    b"line\nbreak",
    b"\xff\xfe.bin",
    b"--help",
    b"a%2Fb?c#d&e",
]


def edit(tab: Tab, name: str) -> None:
    """Open a file of the folder that is shown."""
    tab.page.locator(".files .entry").get_by_text(name, exact=True).click()
    tab.page.get_by_label("Content").wait_for()


def has_own_content(text: Any) -> bool:
    """Tell whether the editor shows what the tests have written."""
    return text.input_value() in map(repr, HOSTILE)


def test_a_file_is_edited_and_saved(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes("one\r\ntwo ü\r\n".encode())
    file.chmod(0o640)
    tab.open_folder(tmp_path)
    edit(tab, "notes.txt")
    text = tab.page.get_by_label("Content")
    assert text.input_value() == "one\ntwo ü\n"
    text.fill("one\nTHREE ü\n")
    tab.sees("not saved")
    tab.shot("editor")
    text.press("Control+s")
    tab.sees("notes.txt is saved.")
    assert file.read_bytes() == "one\r\nTHREE ü\r\n".encode()
    assert file.stat().st_mode & 0o777 == 0o640
    text.press("Escape")
    assert tab.entries() == ["notes.txt"]


def test_what_has_changed_meanwhile_is_not_overwritten_unasked(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "shared.txt"
    file.write_text("theirs\n")
    tab.open_folder(tmp_path)
    edit(tab, "shared.txt")
    text = tab.page.get_by_label("Content")
    text.fill("mine\n")
    file.write_text("changed by somebody\n")
    tab.button("Save").click()
    tab.sees("The file has changed on the box meanwhile.")
    tab.shot("conflict")
    assert file.read_text() == "changed by somebody\n"
    assert text.input_value() == "mine\n"
    tab.button("Save anyway").click()
    tab.sees("shared.txt is saved.")
    assert file.read_text() == "mine\n"
    file.write_text("and again\n")
    text.fill("other\n")
    tab.button("Save").click()
    tab.button("Reload, and lose your changes").click()
    wait_until(lambda: text.input_value() == "and again\n")


def test_unsaved_changes_are_not_left_unasked(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "draft").write_text("")
    tab.open_folder(tmp_path)
    edit(tab, "draft")
    tab.page.get_by_label("Content").fill("much work")
    tab.button("Back").click()
    tab.sees("Leave it unsaved?")
    tab.button("Cancel").click()
    assert tab.page.get_by_label("Content").input_value() == "much work"
    asked: list[str] = []

    def accept(dialog: Any) -> None:
        asked.append(dialog.type)
        dialog.accept()

    tab.page.on("dialog", accept)
    tab.page.reload()
    assert asked == ["beforeunload"]


def test_what_is_no_text_is_not_edited(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\xd8\x00\x01")
    (tmp_path / "mixed").write_bytes(b"a\r\nb\nc\r")
    tab.open_folder(tmp_path)
    tab.page.locator(".files .entry").get_by_text("picture").click()
    tab.sees("4 B that are no text: download it")
    tab.button("Back").click()
    edit(tab, "mixed")
    tab.sees("read only: its lines end in different ways")
    assert tab.button("Save").count() == 0


def test_files_go_up_and_come_down(tab: Tab, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    content = os.urandom(3_000_000)
    (source / "blob ü.bin").write_bytes(content)
    tab.open_folder(target)
    tab.page.locator("input[type=file]").set_input_files(source / "blob ü.bin")
    wait_until(lambda: tab.entries() == ["blob ü.bin"], 30)
    assert (target / "blob ü.bin").read_bytes() == content
    with tab.page.expect_download() as download:
        tab.page.locator(".file").hover()
        tab.page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "blob ü.bin"
    assert Path(download.value.path()).read_bytes() == content


def test_an_upload_replaces_nothing_unasked(tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "kept.txt"
    file.write_text("old")
    tab.open_folder(tmp_path)
    upload = {"name": "kept.txt", "mimeType": "text/plain", "buffer": b"new"}
    for answer, content in (("Cancel", "old"), ("Replace", "new")):
        tab.page.locator("input[type=file]").set_input_files(upload)
        tab.sees("kept.txt is in this folder already.")
        tab.page.get_by_role("dialog").get_by_role("button", name=answer).click()
        tab.sees("left as it was" if answer == "Cancel" else "uploaded, 3 B")
        assert file.read_text() == content


def test_a_dropped_file_is_uploaded(tab: Tab, tmp_path: Path) -> None:
    tab.open_folder(tmp_path)
    dropped = tab.page.evaluate_handle(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(["dropped"], "drop.txt"));
            return data;
        }"""
    )
    tab.page.dispatch_event(".browser", "drop", {"dataTransfer": dropped})
    wait_until(lambda: tab.entries() == ["drop.txt"], 30)
    assert (tmp_path / "drop.txt").read_text() == "dropped"


def test_hostile_names_are_shown_and_do_nothing(tab: Tab, tmp_path: Path) -> None:
    for raw in HOSTILE:
        Path(os.fsdecode(bytes(tmp_path) + b"/" + raw)).write_text(repr(raw))
    tab.open_folder(tmp_path)
    shown = ["--help", "a%2Fb?c#d&e", "<img src=x onerror=attacked=true>", "esc\\x1b[31mred"]
    shown += ["line\\x0abreak", "turn\\u202efdp.exe", "\\xff\\xfe.bin"]
    assert sorted(tab.entries()) == sorted(shown)
    assert tab.page.locator("main img").count() == 0
    tab.shot("hostile-names")
    for name in shown:
        tab.page.locator(".files .entry").get_by_text(name, exact=True).click()
        text = tab.page.get_by_label("Content")
        wait_until(partial(has_own_content, text), 30)
        with tab.page.expect_download() as download:
            tab.page.get_by_role("link", name="Download", exact=True).locator("visible=true").click()
        assert Path(download.value.path()).read_text() == text.input_value()
        tab.button("Back").click()
        tab.page.locator(".files .entry").first.wait_for()


def test_files_are_made_renamed_and_deleted_by_keyboard(tab: Tab, tmp_path: Path) -> None:
    tab.open_folder(tmp_path)
    for what, name in (("New folder", "folder"), ("New file", "text")):
        tab.button(what).click()
        tab.page.get_by_role("textbox", name="Name").fill(name)
        tab.page.keyboard.press("Enter")
    tab.page.get_by_label("Content").wait_for()
    tab.page.keyboard.press("Escape")
    wait_until(lambda: tab.entries() == ["folder", "text"], 30)
    assert (tmp_path / "folder").is_dir()
    tab.page.locator(".files .entry").first.focus()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("F2")
    tab.page.get_by_label("New name").fill("renamed")
    tab.page.keyboard.press("Enter")
    wait_until(lambda: tab.entries() == ["folder", "renamed"], 30)
    tab.page.locator(".files .entry").first.focus()
    tab.page.keyboard.press("Delete")
    tab.sees("This deletes the folder and all that is in it.")
    tab.page.keyboard.press("Escape")
    assert (tmp_path / "folder").is_dir()
    tab.page.keyboard.press("Delete")
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    wait_until(lambda: tab.entries() == ["renamed"], 30)


def test_a_large_folder_is_shown_in_parts(tab: Tab, tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"file-{number}").touch()
    tab.open_folder(tmp_path)
    assert len(tab.entries()) == 300
    tab.button("Show 300 more of 1000").click()
    assert len(tab.entries()) == 600
    tab.page.get_by_label("Filter files").fill("file-99")
    assert tab.entries() == ["file-99", *(f"file-{number}" for number in range(990, 1000))]


def test_what_fails_is_told(tab: Tab, tmp_path: Path) -> None:
    tab.open_folder(tmp_path / "nowhere")
    tab.page.get_by_role("alert").wait_for()
    assert tab.button("Try again").is_visible()
