"""`fs/*` at the method table: the JSON of results, the order of checks, pieces and limits."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from execserver.access.identity import NOBODY
from execserver.core.file_handles import FileHandles
from execserver.handlers import filesystem as handlers
from execserver.handlers import load_handlers
from execserver.handlers.context import Call
from execserver.handlers.registry import HANDLERS
from execserver.handlers.replies import InParts, InTurn, Streamed
from execserver.protocol.decoding import decode_params
from execserver.protocol.errors import RpcError, from_os_error
from execserver.protocol.methods import METHODS
from execserver.protocol.paths import PathUri
from execserver.protocol.record import encode_record
from execserver.services.confinement.sandbox import SandboxService
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import SandboxedFiles
from execserver.settings import Settings
from tests.files.tools import get, put
from tests.support.plain_workers import start_plain_worker

RESTRICTED = {
    "permissions": {
        "type": "managed",
        "file_system": {"type": "restricted", "entries": []},
        "network": "enabled",
    },
    "windowsSandboxLevel": "disabled",
}
UNRESTRICTED = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}


class Client:
    """Asks the handlers directly; answers are JSON texts, errors are pairs of code and message."""

    def __init__(self, name: str = "test") -> None:
        load_handlers()
        self.service = FileService(Settings())
        self.handles = FileHandles(self.service.release)
        connection = SimpleNamespace(
            handles=self.handles, client_name=name, bounded_messages=False, identity=NOBODY
        )
        self.sandbox = SandboxService(Settings(), {}, lambda plan: "nothing makes views here")
        sandboxed = SandboxedFiles(self.service, self.sandbox, start_plain_worker, Settings())
        services = SimpleNamespace(filesystem=self.service, sandboxed_files=sandboxed)
        self._call = cast(Call, SimpleNamespace(connection=connection, services=services))

    def answer(self, method: str, **params: object) -> object:
        """Return what the handler returns."""
        text = json.dumps(params)
        answer = HANDLERS[method](self._call, decode_params(METHODS[method], msgspec.Raw(text.encode())))
        return answer.run() if isinstance(answer, InTurn) else answer

    def text(self, method: str, **params: object) -> str:
        """Return the JSON text of the result."""
        answer = self.answer(method, **params)
        if isinstance(answer, Streamed):
            return b"".join(answer.pieces).decode()
        if isinstance(answer, InParts):
            return b"".join(answer.parts).decode()
        return encode_record(cast(msgspec.Struct, answer)).decode()

    def ask(self, method: str, **params: object) -> Any:
        """Return the decoded result, or code and message of the error."""
        try:
            return json.loads(self.text(method, **params))
        except OSError as error:
            return (from_os_error(error).code, from_os_error(error).message)
        except RpcError as error:
            return (error.code, error.message)

    def close(self) -> None:
        self.handles.close_all()
        self.service.close()
        self.sandbox.close()


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


@pytest.fixture
def folder(tmp_path: os.PathLike[str]) -> bytes:
    return os.path.realpath(os.fsencode(tmp_path))


@pytest.fixture
def root(folder: bytes) -> str:
    """The URI of the folder."""
    return PathUri.from_native(folder).uri


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_results_have_the_members_of_the_contract_in_order(client: Client, folder: bytes, root: str) -> None:
    os.utime(put(folder + b"/f", b"hello"), ns=(0, 1_600_000_000_123_999_999))
    metadata = (
        '{"isDirectory":false,"isFile":true,"isSymlink":false,'
        '"size":5,"createdAtMs":0,"modifiedAtMs":1600000000123}'
    )
    expected: list[tuple[str, dict[str, object], str]] = [
        ("fs/getMetadata", {"path": f"{root}/f"}, metadata),
        ("fs/readFile", {"path": f"{root}/f"}, '{"dataBase64":"aGVsbG8="}'),
        ("fs/open", {"handleId": "h", "path": f"{root}/f"}, '{"handleId":"h"}'),
        ("fs/readBlock", {"handleId": "h", "offset": 1, "len": 3}, '{"chunk":"ZWxs","eof":false}'),
        ("fs/readBlock", {"handleId": "h", "offset": 5, "len": 1}, '{"chunk":"","eof":true}'),
        ("fs/close", {"handleId": "h"}, "{}"),
        ("fs/canonicalize", {"path": f"{root}/./f"}, f'{{"path":"{root}/f"}}'),
        (
            "fs/readDirectory",
            {"path": root},
            '{"entries":[{"fileName":"f","isDirectory":false,"isFile":true}]}',
        ),
        ("fs/createDirectory", {"path": f"{root}/a/b"}, "{}"),
        ("fs/copy", {"sourcePath": f"{root}/f", "destinationPath": f"{root}/a/g", "recursive": False}, "{}"),
        ("fs/writeFile", {"path": f"{root}/f", "dataBase64": ""}, "{}"),
        ("fs/remove", {"path": f"{root}/f"}, "{}"),
        (
            "fs/walk",
            {"path": root, "options": walk_options()},
            f'{{"entries":[{{"path":"{root}/a","kind":"directory"}},{{"path":"{root}/a/b","kind":"directory"}},'
            f'{{"path":"{root}/a/g","kind":"file"}}],"errors":[],"truncated":false}}',
        ),
    ]
    for method, params, text in expected:
        assert client.text(method, **params) == text


def walk_options(**changes: object) -> dict[str, object]:
    limits = {"maxDepth": 9, "maxDirectories": 99, "maxEntries": 50_000, "followDirectorySymlinks": False}
    return {**limits, **changes}


def test_flags_that_are_not_given_count_as_true(client: Client, folder: bytes, root: str) -> None:
    assert client.ask("fs/createDirectory", path=f"{root}/a/b", recursive=None) == {}
    assert client.ask("fs/remove", path=f"{root}/a", recursive=None) == {}
    assert client.ask("fs/remove", path=f"{root}/a", force=None) == {}
    assert client.ask("fs/remove", path=f"{root}/a", force=False)[0] == -32004
    assert client.ask("fs/createDirectory", path=f"{root}/a/b", recursive=False)[0] == -32004
    os.makedirs(folder + b"/a/b")
    assert client.ask("fs/remove", path=f"{root}/a", recursive=False) == (
        -32603,
        "Directory not empty (os error 39)",
    )


@pytest.mark.parametrize("length", [196_608, 196_609, 1_000_000])
def test_a_large_file_leaves_in_pieces_of_one_result(
    client: Client, folder: bytes, root: str, length: int
) -> None:
    content = os.urandom(length)
    put(folder + b"/f", content)
    answer = client.answer("fs/readFile", path=f"{root}/f")
    assert isinstance(answer, Streamed) == (length > 196_608)
    if isinstance(answer, Streamed):
        pieces = list(answer.pieces)
        assert max(map(len, pieces)) < 263_000
        assert json.loads(b"".join(pieces)) == {"dataBase64": b64(content)}
    else:
        assert client.ask("fs/readFile", path=f"{root}/f") == {"dataBase64": b64(content)}


@pytest.mark.parametrize("name", ["codex-environment", "codex-core"])
def test_real_clients_are_told_before_a_message_would_end_their_connection(
    folder: bytes, root: str, name: str
) -> None:
    limit = 50_330_880
    assert len(b64(b"x" * 3)) * (limit // 3) + 1024 == 64 * 1024 * 1024
    put(folder + b"/f")
    os.truncate(folder + b"/f", limit + 1)
    client = Client(name)
    text = f"file is too large to read: limit is {limit} bytes"
    assert client.ask("fs/readFile", path=f"{root}/f") == (-32600, text)
    os.truncate(folder + b"/f", limit)
    answer = client.answer("fs/readFile", path=f"{root}/f")
    assert isinstance(answer, Streamed)
    envelope = len('{"id":9223372036854775807,"result":}')
    assert sum(map(len, answer.pieces)) + envelope <= 64 * 1024 * 1024
    client.close()


def test_others_may_read_up_to_the_limit_of_the_contract(client: Client, folder: bytes, root: str) -> None:
    put(folder + b"/f")
    os.truncate(folder + b"/f", 536_870_913)
    text = "file is too large to read: limit is 536870912 bytes"
    assert client.ask("fs/readFile", path=f"{root}/f") == (-32600, text)
    os.truncate(folder + b"/f", 536_870_912)
    assert isinstance(client.answer("fs/readFile", path=f"{root}/f"), Streamed)


def test_the_content_is_checked_before_the_path_and_nothing_is_touched(
    client: Client, folder: bytes, root: str
) -> None:
    text = "fs/writeFile requires valid base64 dataBase64: Invalid symbol 42, offset 0."
    put(folder + b"/f", b"kept")
    assert client.ask("fs/writeFile", path="file://h/x", dataBase64="*") == (-32600, text)
    assert client.ask("fs/writeFile", path=f"{root}/f", dataBase64="***") == (-32600, text)
    assert get(folder + b"/f") == b"kept"
    assert (
        client.ask("fs/writeFile", path="file://h/x", dataBase64="")[1]
        == "'file://h/x' is invalid on 'linux'"
    )


def test_large_content_is_written(client: Client, folder: bytes, root: str) -> None:
    content = os.urandom(3_000_000)
    assert client.ask("fs/writeFile", path=f"{root}/f", dataBase64=b64(content)) == {}
    assert get(folder + b"/f") == content


def test_handles_are_checked_in_the_recorded_order(client: Client, folder: bytes, root: str) -> None:
    put(folder + b"/f", b"hello")
    long = "x" * 33
    too_long = (-32600, "file read handle ID must not exceed 32 bytes")
    missing = (-32004, "No such file or directory (os error 2)")
    assert client.ask("fs/open", handleId=long, path=f"{root}/missing") == too_long
    assert client.ask("fs/open", handleId=long, path="file://h/x") == too_long
    assert client.ask("fs/close", handleId=long) == too_long
    assert client.ask("fs/open", handleId="h", path=f"{root}/f") == {"handleId": "h"}
    assert client.ask("fs/open", handleId="h", path=f"{root}/missing") == missing
    assert client.ask("fs/open", handleId="h", path=f"{root}/f") == (
        -32600,
        "file read handle `h` already exists",
    )
    assert client.ask("fs/close", handleId="unknown") == {}
    assert len(client.handles) == 1


def test_any_error_of_reading_closes_the_handle(client: Client, folder: bytes, root: str) -> None:
    put(folder + b"/f", b"hello")
    client.ask("fs/open", handleId="h", path=f"{root}/f")
    invalid = (-32600, "Invalid argument (os error 22)")
    assert client.ask("fs/readBlock", handleId="h", offset=2**64 - 1, len=1) == invalid
    assert client.ask("fs/readBlock", handleId="h", offset=0, len=1) == (
        -32004,
        "unknown file read handle `h`",
    )


def test_a_file_is_replaced_block_by_block(client: Client, folder: bytes, root: str) -> None:
    put(folder + b"/f", b"much longer than before")
    bad = (-32603, "Bad file descriptor (os error 9)")
    client.ask("fs/open", handleId="w", path=f"{root}/f", mode="replace")
    assert client.ask("fs/writeBlock", handleId="w", offset=0, chunk=b64(b"hello")) == {}
    assert client.ask("fs/writeBlock", handleId="w", offset=8, chunk=b64(b"x")) == {}
    assert client.ask("fs/writeBlock", handleId="w", offset=2**63 - 2, chunk=b64(b"x")) == (
        -32603,
        "File too large (os error 27)",
    )
    assert client.ask("fs/writeBlock", handleId="w", offset=9, chunk=b64(b"y")) == {}
    assert client.ask("fs/readBlock", handleId="w", offset=0, len=1) == bad
    assert client.ask("fs/close", handleId="w") == {}
    assert get(folder + b"/f") == b"hello\0\0\0xy"
    client.ask("fs/open", handleId="r", path=f"{root}/f", mode="read")
    assert client.ask("fs/writeBlock", handleId="r", offset=0, chunk=b64(b"x")) == bad
    assert client.ask("fs/readBlock", handleId="r", offset=0, len=1) == {"chunk": "aA==", "eof": False}


def test_the_limits_of_a_walk_are_checked_before_its_path(client: Client) -> None:
    for path in ("file://h/x", "file:///missing"):
        assert client.ask("fs/walk", path=path, options=walk_options(maxEntries=0)) == (
            -32600,
            "filesystem walk limits must be greater than zero",
        )
    assert client.ask("fs/walk", path="file:///missing", options=walk_options())[0] == -32004


def test_long_listings_leave_in_pieces(
    client: Client, folder: bytes, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1100):
        put(folder + b"/\xc3\xbc%d" % number)
    whole = client.ask("fs/readDirectory", path=root)
    walked = client.ask("fs/walk", path=root, options=walk_options(maxEntries=1050))
    monkeypatch.setattr(handlers, "_ENTRIES_AT_ONCE", 1000)
    answer = client.answer("fs/readDirectory", path=root)
    assert isinstance(answer, Streamed)
    pieces = list(answer.pieces)
    assert len(pieces) == 5
    assert json.loads(b"".join(pieces)) == whole
    assert len(whole["entries"]) == 1100
    assert isinstance(client.answer("fs/walk", path=root, options=walk_options()), Streamed)
    assert client.ask("fs/walk", path=root, options=walk_options(maxEntries=1050)) == walked
    assert walked["truncated"] is True
    assert len(walked["entries"]) == 1050


PATH_CALLS: list[tuple[str, dict[str, object]]] = [
    ("fs/readFile", {}),
    ("fs/writeFile", {"dataBase64": ""}),
    ("fs/createDirectory", {}),
    ("fs/getMetadata", {}),
    ("fs/canonicalize", {}),
    ("fs/readDirectory", {}),
    ("fs/remove", {}),
    ("fs/walk", {"options": walk_options()}),
]


@pytest.mark.parametrize(("method", "more"), PATH_CALLS, ids=[method for method, _ in PATH_CALLS])
def test_a_sandbox_that_restricts_files_is_never_left_out(
    client: Client, folder: bytes, root: str, method: str, more: dict[str, object]
) -> None:
    put(folder + b"/f", b"kept")
    refused = (-32600, "failed to prepare fs sandbox: nothing makes views here")
    assert client.ask(method, path=f"{root}/f", sandbox=RESTRICTED, **more) == refused
    assert get(folder + b"/f") == b"kept"
    foreign = (-32600, "'file://h/x' is invalid on 'linux'")
    assert client.ask(method, path="file://h/x", sandbox=RESTRICTED, **more) == foreign
    assert client.ask(method, path="file://h/x", **more) == foreign
    assert client.ask(method, path="/a\0b", **more) == (
        -32600,
        "file name contained an unexpected NUL byte",
    )


def test_copies_and_open_files_are_not_left_out_either(client: Client, folder: bytes, root: str) -> None:
    put(folder + b"/f", b"x")
    copy = {"sourcePath": f"{root}/f", "destinationPath": f"{root}/g", "recursive": False}
    assert client.ask("fs/copy", sandbox=RESTRICTED, **copy)[1].startswith("failed to prepare fs sandbox")
    assert client.ask("fs/open", handleId="h", path=f"{root}/f", sandbox=RESTRICTED) == (
        -32600,
        "failed to prepare fs sandbox: nothing makes views here",
    )
    assert client.ask("fs/open", handleId="h", path="file://h/x", sandbox=RESTRICTED) == (
        -32600,
        "'file://h/x' is invalid on 'linux'",
    )
    assert not os.path.exists(folder + b"/g")
    for ends in ({"sourcePath": "file://h/x"}, {"destinationPath": "file://h/x"}):
        assert client.ask("fs/copy", **{**copy, **ends})[1] == "'file://h/x' is invalid on 'linux'"


def test_a_sandbox_that_restricts_nothing_changes_nothing(client: Client, folder: bytes, root: str) -> None:
    put(folder + b"/f", b"x")
    assert client.ask("fs/readFile", path=f"{root}/f", sandbox=UNRESTRICTED) == {"dataBase64": "eA=="}
    assert client.ask("fs/open", handleId="h", path=f"{root}/f", sandbox=UNRESTRICTED) == {"handleId": "h"}


def test_names_and_paths_that_are_no_utf8_keep_the_json_valid(
    client: Client, folder: bytes, root: str
) -> None:
    put(folder + b'/"\\\n\xff')
    assert client.ask("fs/readDirectory", path=root)["entries"][0]["fileName"] == '"\\\n\ufffd'
    uri = f"{root}/%22%5C%0A%FF"
    assert client.ask("fs/walk", path=root, options=walk_options())["entries"][0]["path"] == uri
    assert client.ask("fs/canonicalize", path=uri) == {"path": uri}
