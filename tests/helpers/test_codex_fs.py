"""`codex-fs`: a process that answers one request, with the answers of the server."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from execserver.protocol.paths import PathUri
from helpers import codex_fs
from helpers.fs_request import OPERATIONS
from tests.support.sandboxes import workspace_write
from tests.support.source import ROOT

COMMAND = [sys.executable, "-I", "-S", str(ROOT / "execserver" / "__main__.py"), "--codex-run-as-fs-helper"]
RESTRICTED = {
    "permissions": {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": []},
        "network": "restricted",
    },
    "windowsSandboxLevel": "disabled",
}
DISABLED = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}


def run(request: bytes, stdout: IO[bytes] | int = subprocess.PIPE) -> subprocess.CompletedProcess[bytes]:
    """Start the helper the way a server of the reference does: with next to no environment."""
    return subprocess.run(
        COMMAND,
        input=request,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
        timeout=30,
        check=False,
    )


def request_for(operation: str, **params: object) -> bytes:
    return json.dumps({"operation": operation, "params": params}).encode()


def ask(operation: str, **params: object) -> Any:
    """Return the payload of a helper's answer: the response, or code and message."""
    done = run(request_for(operation, **params))
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    assert done.stdout.endswith(b"}\n")
    answer = json.loads(done.stdout)
    if answer["status"] == "error":
        return answer["payload"]["code"], answer["payload"]["message"]
    assert answer["payload"]["operation"] == operation
    return answer["payload"]["response"]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_every_operation_is_answered(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    file = f"{root}/sub/f ü"
    assert ask("fs/createDirectory", path=f"{root}/sub") == {}
    assert ask("fs/writeFile", path=file, dataBase64=b64(b"hello")) == {}
    uri = PathUri.from_native(os.fsencode(root)).uri + "/sub/f%20%C3%BC"
    assert ask("fs/readFile", path=uri) == {"dataBase64": b64(b"hello")}
    os.utime(file, ns=(0, 1_600_000_000_123_999_999))
    assert ask("fs/getMetadata", path=file) == {
        "isDirectory": False,
        "isFile": True,
        "isSymlink": False,
        "size": 5,
        "createdAtMs": 0,
        "modifiedAtMs": 1_600_000_000_123,
    }
    os.symlink("f ü", f"{root}/sub/link")
    assert ask("fs/canonicalize", path=f"{root}/sub/link") == {"path": uri}
    entries = ask("fs/readDirectory", path=f"{root}/sub")["entries"]
    assert sorted(entries, key=lambda entry: str(entry["fileName"])) == [
        {"fileName": "f ü", "isDirectory": False, "isFile": True},
        {"fileName": "link", "isDirectory": False, "isFile": True},
    ]
    assert ask("fs/copy", sourcePath=f"{root}/sub", destinationPath=f"{root}/copy", recursive=True) == {}
    assert sorted(os.listdir(f"{root}/copy")) == ["f ü", "link"]
    assert ask("fs/remove", path=f"{root}/sub") == {}
    assert os.listdir(root) == ["copy"]


def test_the_reply_is_one_line_with_the_members_in_order(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"hello\n")
    done = run(request_for("fs/readFile", path=str(tmp_path / "f"), sandbox=None))
    assert (done.stdout, done.stderr, done.returncode) == (
        b'{"status":"ok","payload":{"operation":"fs/readFile","response":{"dataBase64":"aGVsbG8K"}}}\n',
        b"",
        0,
    )
    done = run(request_for("fs/readFile", path=str(tmp_path / "missing")))
    assert (done.stdout, done.stderr, done.returncode) == (
        b'{"status":"error","payload":{"code":-32004,"message":"No such file or directory (os error 2)"}}\n',
        b"",
        0,
    )


def test_a_failed_operation_is_a_reply(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    os.mkfifo(f"{root}/fifo")
    os.mkdir(f"{root}/dir")
    assert ask("fs/readFile", path=root) == (-32600, f"path `{root}` is not a file")
    assert ask("fs/readFile", path=f"{root}/fifo") == (-32600, f"path `{root}/fifo` is not a file")
    assert ask("fs/readFile", path="file://host/x") == (-32600, "'file://host/x' is invalid on 'linux'")
    assert ask("fs/readFile", path="/x\0") == (-32600, "file name contained an unexpected NUL byte")
    assert ask("fs/writeFile", path="file://host/x", dataBase64="*") == (
        -32600,
        "fs/writeFile requires valid base64 dataBase64: Invalid symbol 42, offset 0.",
    )
    assert ask("fs/createDirectory", path=f"{root}/dir", recursive=False) == (
        -32603,
        "File exists (os error 17)",
    )
    assert ask("fs/copy", sourcePath=f"{root}/dir", destinationPath=f"{root}/x", recursive=False) == (
        -32600,
        "fs/copy requires recursive: true when sourcePath is a directory",
    )


@pytest.mark.parametrize(
    ("request_text", "reason"),
    [
        (b"", "EOF while parsing a value at line 1 column 0"),
        (b"{\n", "EOF while parsing an object at line 2 column 0"),
        (
            b'{"operation":"fs/close","params":{}}',
            "unknown variant `fs/close`, expected one of " + ", ".join(f"`{name}`" for name in OPERATIONS),
        ),
        (b'{"operation":"fs/readFile","params":{}}', "missing field `path`"),
        (b'{"operation":"fs/readFile","params":{"path":"rel"}}', "path is not absolute: rel"),
        (
            b'{"operation":"fs/readFile","params":{"path":"/x","sandbox":{}}}',
            "missing field `permissions`",
        ),
    ],
)
def test_what_cannot_be_understood_ends_with_1_and_no_reply(request_text: bytes, reason: str) -> None:
    done = run(request_text)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"fs sandbox helper failed: {reason}\n"


READ_ONLY_FS = (-32603, "Read-only file system (os error 30)")
NOT_THERE = (-32004, "No such file or directory (os error 2)")
REFUSED = (-32600, "Permission denied (os error 13)")


def test_a_sandbox_that_restricts_nothing_is_none(tmp_path: Path) -> None:
    target = tmp_path / "f"
    assert ask("fs/writeFile", path=str(target), dataBase64="", sandbox=RESTRICTED) == NOT_THERE
    assert not target.exists()
    assert ask("fs/writeFile", path=str(target), dataBase64="", sandbox=DISABLED) == {}
    assert target.exists()


def test_a_request_with_a_workspace_sandbox_is_confined_without_a_server(tmp_path: Path) -> None:
    ws, out = tmp_path / "ws", tmp_path / "out"
    ws.mkdir()
    out.mkdir()
    (ws / "a.txt").write_bytes(b"hello")
    (out / "s").write_bytes(b"secret")
    inside = workspace_write(ws)
    hello = {"dataBase64": b64(b"hello")}
    assert ask("fs/readFile", path=str(ws / "a.txt"), sandbox=inside) == hello
    assert ask("fs/writeFile", path=str(ws / "n"), dataBase64=b64(b"x"), sandbox=inside) == {}
    assert (ws / "n").read_bytes() == b"x"
    assert ask("fs/writeFile", path=str(out / "n"), dataBase64="", sandbox=inside) == READ_ONLY_FS
    assert ask("fs/writeFile", path=str(ws / ".git" / "n"), dataBase64="", sandbox=inside) == READ_ONLY_FS
    assert ask("fs/createDirectory", path=str(ws / ".agents" / "x"), sandbox=inside) == READ_ONLY_FS
    assert ask("fs/readFile", path="/proc/self/environ", sandbox=inside) == REFUSED
    copied = {"sourcePath": str(ws / "a.txt"), "destinationPath": str(out / "c"), "recursive": False}
    assert ask("fs/copy", sandbox=inside, **copied) == READ_ONLY_FS
    assert ask("fs/remove", path=str(out / "s"), sandbox=inside) == READ_ONLY_FS
    assert ask("fs/canonicalize", path=str(ws), sandbox=inside) == {
        "path": PathUri.from_native(os.fsencode(ws)).uri
    }
    assert sorted(os.listdir(ws)) == ["a.txt", "n"]
    assert os.listdir(out) == ["s"]


@pytest.mark.parametrize("confined", [False, True])
def test_links_are_refused_where_the_request_says_so(tmp_path: Path, confined: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "f").write_text("content")
    (tmp_path / "there").symlink_to("folder")
    (tmp_path / "link").symlink_to("folder/f")
    rules = [
        {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
        {"path": {"type": "path", "path": str(tmp_path)}, "access": "write"},
    ]
    files = {"type": "restricted", "entries": rules}
    permissions = {"type": "managed", "file_system": files, "network": "restricted"}
    sandbox = {"permissions": permissions, "windowsSandboxLevel": "disabled"} if confined else None

    def strictly(operation: str, name: str, **params: object) -> Any:
        return ask(operation, path=f"{tmp_path}/{name}", followSymlinks=False, sandbox=sandbox, **params)

    loop = (-32603, "Symbolic link loop (os error 40)")
    not_a_directory = (-32603, "Not a directory (os error 20)")
    assert strictly("fs/readFile", "link") == loop
    assert strictly("fs/writeFile", "link", dataBase64="") == loop
    assert strictly("fs/writeFile", "there/f", dataBase64="") == not_a_directory
    assert strictly("fs/createDirectory", "there/new") == not_a_directory
    assert strictly("fs/getMetadata", "link") == (-32600, "path contains a symbolic link")
    assert strictly("fs/remove", "there/f", recursive=False) == not_a_directory
    assert strictly("fs/readFile", "folder/f") == {"dataBase64": b64(b"content")}
    assert strictly("fs/getMetadata", "folder/f")["createdAtMs"] > 0
    assert strictly("fs/createDirectory", "folder/new") == {}
    assert strictly("fs/writeFile", "folder/n", dataBase64=b64(b"x")) == {}
    assert strictly("fs/remove", "folder/n", recursive=False) == {}
    assert sorted(os.listdir(tmp_path / "folder")) == ["f", "new"]


def test_a_sandbox_whose_folder_is_not_there_is_an_error(tmp_path: Path) -> None:
    inside = workspace_write(tmp_path / "none")
    code, text = ask("fs/readFile", path=str(tmp_path), sandbox=inside)
    assert (code, text) == (-32603, "No such file or directory (os error 2)")


def test_a_reply_that_cannot_be_written_ends_a_confined_helper_as_any(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    request = request_for("fs/readFile", path=str(tmp_path / "f"), sandbox=workspace_write(tmp_path))
    with open("/dev/full", "wb") as full:
        done = run(request, stdout=full)
    assert done.returncode == 1
    assert done.stderr == b"fs sandbox helper failed: No space left on device (os error 28)\n"


def test_a_large_file_goes_both_ways(tmp_path: Path) -> None:
    content = os.urandom(5_000_001)
    assert ask("fs/writeFile", path=str(tmp_path / "f"), dataBase64=b64(content)) == {}
    assert (tmp_path / "f").read_bytes() == content
    assert ask("fs/readFile", path=str(tmp_path / "f")) == {"dataBase64": b64(content)}


def test_a_file_above_the_contracts_limit_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        file.truncate(536_870_913)
    assert ask("fs/readFile", path=str(tmp_path / "f")) == (
        -32600,
        "file is too large to read: limit is 536870912 bytes",
    )


def test_a_request_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(codex_fs, "MAX_REQUEST_BYTES", 100_000)
    with open("/dev/zero", "rb") as endless, standard_input(endless.fileno()):
        assert codex_fs.main() == 1
    assert capfd.readouterr() == (
        "",
        "fs sandbox helper failed: request is too large: limit is 100000 bytes\n",
    )


@contextmanager
def standard_input(fd: int) -> Iterator[None]:
    kept = os.dup(0)
    os.dup2(fd, 0)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_a_file_that_cannot_be_read_to_its_end_leaves_no_whole_reply(
    monkeypatch: pytest.MonkeyPatch, capfd: Any, tmp_path: Path
) -> None:
    def broken(request: object, guarded: object) -> Iterator[bytes]:
        yield b'{"dataBase64":"'
        raise OSError(5, "")

    monkeypatch.setattr(codex_fs, "perform", broken)
    (tmp_path / "request").write_bytes(request_for("fs/readFile", path="/x"))
    with open(tmp_path / "request", "rb") as request, standard_input(request.fileno()):
        assert codex_fs.main() == 1
    out, err = capfd.readouterr()
    assert out == '{"status":"ok","payload":{"operation":"fs/readFile","response":{"dataBase64":"'
    assert err == "fs sandbox helper failed: I/O error (os error 5)\n"


def test_a_reply_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = run(request_for("fs/getMetadata", path="/"), stdout=full)
    assert done.returncode == 1
    assert done.stderr == b"fs sandbox helper failed: No space left on device (os error 28)\n"


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_descriptors_harm_no_file(tmp_path: Path, closed: str) -> None:
    (tmp_path / "request").write_bytes(request_for("fs/readFile", path=str(tmp_path / "f")))
    (tmp_path / "f").write_bytes(b"kept" * 100_000)
    script = f'"$@" <"$0" {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", script, tmp_path / "request", *COMMAND],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == (0 if closed == "2>&-" else 1)
    assert (tmp_path / "f").read_bytes() == b"kept" * 100_000


def test_pipes_that_do_not_block_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3_000_000)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, subprocess.Popen(COMMAND, stdin=theirs.fileno(), stdout=theirs.fileno()) as helper:
        theirs.close()
        ours.sendall(request_for("fs/readFile", path=str(tmp_path / "f")))
        ours.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := ours.recv(1 << 16):
            answer += piece
        assert helper.wait(20) == 0
    assert len(json.loads(answer)["payload"]["response"]["dataBase64"]) == 4_000_000


def test_arguments_are_ignored() -> None:
    command = [*COMMAND, "--help", "x"]
    done = subprocess.run(
        command, input=request_for("fs/canonicalize", path="/"), capture_output=True, timeout=30, check=True
    )
    assert json.loads(done.stdout)["payload"]["response"] == {"path": "file:///"}
