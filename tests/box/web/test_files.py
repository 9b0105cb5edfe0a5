"""Files and ports of boxes for a page: listed, edited, uploaded, downloaded, forwarded."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.box.web.page import Page, Refused, Web
from tests.support.waiting import wait_until

OWN = "this machine"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder on the box."""
    made = tmp_path / "of the box"
    made.mkdir()
    return made


def test_a_folder_is_listed_whatever_its_names_are(page: Page, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "plain").write_bytes(b"12345")
    (folder / "plain").chmod(0o640)
    os.utime(folder / "plain", ns=(0, 1_234_567_891_234_567_890))
    (folder / "a\nb <i> \x1b[2J").write_bytes(b"")
    with open(os.fsencode(folder) + b"/no \xff utf-8", "wb") as file:
        file.write(b"x")
    found = page.ask("files.list", box=OWN, path=str(folder))
    assert (found["path"], found["truncated"]) == (str(folder), False)
    entries = {each["name"]: each for each in found["entries"]}
    assert set(entries) == {"sub", "plain", "a\nb <i> \x1b[2J", "no \udcff utf-8"}
    assert found["entries"][0]["name"] == "sub"
    assert entries["sub"]["kind"] == "directory"
    assert entries["plain"] == {
        "name": "plain",
        "kind": "file",
        "size": 5,
        "mtime_ms": 1_234_567_891_234,
        "mode": 0o640,
    }
    assert page.ask("files.read", box=OWN, path=f"{folder}/no \udcff utf-8")["text"] == "x"


@pytest.mark.long
def test_a_large_folder_is_cut(page: Page, folder: Path) -> None:
    for number in range(5001):
        (folder / f"{number:04}").touch()
    found = page.ask("files.list", box=OWN, path=str(folder))
    assert (len(found["entries"]), found["truncated"]) == (5000, True)
    assert (found["entries"][0]["size"], found["entries"][-1]["size"]) == (0, None)


def test_a_text_is_saved_if_nobody_has_changed_it(page: Page, folder: Path) -> None:
    path = folder / "text"
    path.write_text("öld")
    path.chmod(0o750)
    link = folder / "link"
    link.symlink_to("text")
    seen = page.ask("files.read", box=OWN, path=str(link))
    assert (seen["text"], seen["truncated"], seen["size"]) == ("öld", False, 4)
    saved = page.ask("files.write", box=OWN, path=str(link), text="new", version=seen["version"])
    assert (path.read_text(), link.is_symlink(), path.stat().st_mode & 0o777) == ("new", True, 0o750)
    with pytest.raises(Refused) as refused:
        page.ask("files.write", box=OWN, path=str(path), text="late", version=seen["version"])
    assert (refused.value.code, path.read_text()) == ("changed", "new")
    page.ask("files.write", box=OWN, path=str(path), text="newer", version=saved["version"])
    path.unlink()
    with pytest.raises(Refused) as refused:
        page.ask("files.write", box=OWN, path=str(path), text="gone", version=saved["version"])
    assert refused.value.code == "changed"
    page.ask("files.write", box=OWN, path=str(path), text="made", version=None)
    with pytest.raises(Refused) as refused:
        page.ask("files.write", box=OWN, path=str(path), text="twice", version=None)
    assert (refused.value.code, path.read_text()) == ("exists", "made")


def test_what_is_no_text_is_told(page: Page, folder: Path) -> None:
    (folder / "binary").write_bytes(b"\x7fELF\0\1")
    (folder / "large").write_bytes("ö".encode() * 600_000)
    assert page.ask("files.read", box=OWN, path=f"{folder}/binary")["text"] is None
    large = page.ask("files.read", box=OWN, path=f"{folder}/large")
    assert (len(large["text"]), large["truncated"], large["size"]) == (524_288, True, 1_200_000)
    os.mkfifo(folder / "fifo")
    with pytest.raises(Refused):
        page.ask("files.read", box=OWN, path=f"{folder}/fifo")


def test_files_are_made_moved_and_removed(page: Page, folder: Path) -> None:
    page.ask("files.mkdir", box=OWN, path=f"{folder}/a")
    with pytest.raises(Refused) as refused:
        page.ask("files.mkdir", box=OWN, path=f"{folder}/a")
    assert refused.value.code == "exists"
    page.ask("files.rename", box=OWN, **{"from": f"{folder}/a", "to": f"{folder}/b"})
    (folder / "c").touch()
    with pytest.raises(Refused) as refused:
        page.ask("files.rename", box=OWN, **{"from": f"{folder}/b", "to": f"{folder}/c"})
    assert refused.value.code == "exists"
    (folder / "b" / "inside").touch()
    with pytest.raises(Refused):
        page.ask("files.remove", box=OWN, path=f"{folder}/b")
    page.ask("files.remove", box=OWN, path=f"{folder}/b", recursive=True)
    for root in ("/", "//", "/.", "/../"):
        with pytest.raises(Refused, match="the root is not removed"):
            page.ask("files.remove", box=OWN, path=root, recursive=True)
    assert os.listdir(folder) == ["c"]


@pytest.mark.parametrize("box", [OWN, "dev"])
def test_a_file_goes_up_and_comes_down(web: Web, folder: Path, box: str) -> None:
    path = os.fsencode(folder) + b"/<b>\xff.html"
    content = os.urandom(3_000_000)
    assert web.file(box, path, "PUT", content).status == 201
    os.chmod(path, 0o751)
    answer = web.file(box, path)
    assert (answer.status, answer.body) == (200, content)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith('attachment; filename="_b__.html"; filename*=')
    assert web.file(box, path, "PUT", b"new", If_None_Match="*").status == 412
    assert web.file(box, path, "PUT", b"").status == 204
    assert os.stat(path).st_mode & 0o777 == 0o751
    assert web.file(box, path).body == b""
    assert os.listdir(os.fsencode(folder)) == [b"<b>\xff.html"]


def test_what_cannot_be_transferred_is_told(web: Web, folder: Path) -> None:
    assert web.file(OWN, b"/no/such").status == 404
    assert web.file("nobody", b"/etc/passwd").status == 404
    assert web.file(OWN, b"relative").status == 400
    assert web.file(OWN, os.fsencode(folder)).status == 502
    assert web.file(OWN, os.fsencode(folder), "PUT", b"x").status == 502
    assert web.file(OWN, b"/no/such/folder", "PUT", b"x").status == 404
    assert os.listdir(folder) == []


def test_an_upload_that_is_cut_leaves_nothing(web: Web, folder: Path) -> None:
    path = folder / "kept"
    path.write_text("before")
    secret = web.url.rstrip("/").rpartition("/")[2]
    with web.raw() as sock:
        head = f"PUT /{secret}/files?box={quote(OWN)}&path={quote(str(path))} HTTP/1.1\r\n"
        head += f"Host: 127.0.0.1:{web.port}\r\nOrigin: http://127.0.0.1:{web.port}\r\n"
        sock.sendall(f"{head}Content-Length: 4000000\r\n\r\n".encode() + bytes(2_000_000))
        wait_until(lambda: len(os.listdir(folder)) == 2)
    wait_until(lambda: os.listdir(folder) == ["kept"])
    assert path.read_text() == "before"


def test_an_upload_says_its_length(web: Web) -> None:
    secret = web.url.rstrip("/").rpartition("/")[2]
    with web.raw() as sock:
        head = f"PUT /{secret}/files?box=dev&path=/tmp/x HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\n"
        head += f"Origin: http://127.0.0.1:{web.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        sock.sendall(head.encode())
        assert sock.recv(12) == b"HTTP/1.1 411"


class Hello(BaseHTTPRequestHandler):
    """A server on the box."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *words: object) -> None:
        """Say nothing."""


def test_a_port_of_a_box_is_reached_here(page: Page) -> None:
    with HTTPServer(("127.0.0.1", 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.server_address[1]
            found = page.ask("ports.forward", box="dev", port=port, address="127.0.0.1")
            rows = page.ask("ports.list", box="dev")
            assert rows == sorted(rows, key=lambda each: (each["port"], each["address"]))
            listed = {each["port"]: each for each in rows}
            assert listed[port]["url"] == found["url"]
            with urllib.request.urlopen(found["url"], timeout=30) as answer:
                assert answer.read() == b"hello"
            assert page.ask("ports.forward", box="dev", port=port, address="127.0.0.1") == found
            page.ask("ports.close", url=found["url"])
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(OSError):
        urllib.request.urlopen(found["url"], timeout=30)
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    with pytest.raises(Refused):
        page.ask("ports.forward", box="dev", port=closed, address="127.0.0.1")


def test_the_sandbox_of_a_box_is_reported(page: Page) -> None:
    found = page.ask("sandbox.report", box="dev")
    assert {each["name"] for each in found["policies"]} >= {"read-only", "workspace-write"}
    assert all({"name", "works", "detail", "blocker", "cure"} <= each.keys() for each in found["checks"])
