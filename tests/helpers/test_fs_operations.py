"""The helper does and answers what the handlers of the server do and answer, on a twin of the same tree."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.access.identity import NOBODY
from execserver.handlers import load_handlers
from execserver.handlers.context import Call
from execserver.handlers.guard import guarded
from execserver.handlers.registry import HANDLERS
from execserver.handlers.replies import InParts, InTurn, Streamed
from execserver.protocol.decoding import decode_params
from execserver.protocol.errors import RpcError
from execserver.protocol.methods import METHODS
from execserver.protocol.paths import PathUri
from execserver.protocol.record import encode_record
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.files.guard import PathGuard
from execserver.sandbox.files.operations import GuardedFiles
from execserver.services.confinement.sandbox import SandboxService
from execserver.services.files.filesystem import FileService
from execserver.services.files.sandboxed import SandboxedFiles
from execserver.settings import Settings
from helpers import codex_fs, fs_operations
from helpers.fs_request import read_request
from tests.helpers.test_codex_fs import DISABLED, RESTRICTED, b64
from tests.support.plain_workers import plan, start_plain_worker


class Server:
    """Asks the handlers directly."""

    def __init__(self, sandboxed: SandboxedFiles | None = None) -> None:
        load_handlers()
        self.files = FileService(Settings())
        connection = SimpleNamespace(
            handles=None, client_name="test", bounded_messages=False, identity=NOBODY
        )
        services = SimpleNamespace(filesystem=self.files, sandboxed_files=sandboxed)
        self._call = cast(Call, SimpleNamespace(connection=connection, services=services))

    def answer(self, operation: str, params: dict[str, object]) -> object:
        try:
            result = guarded(operation, lambda: self._text(operation, params))
        except RpcError as error:
            return error.code, error.message
        return json.loads(result)

    def _text(self, operation: str, params: dict[str, object]) -> bytes:
        decoded = decode_params(METHODS[operation], msgspec.Raw(json.dumps(params).encode()))
        answer = HANDLERS[operation](self._call, decoded)
        if isinstance(answer, InTurn):
            answer = answer.run()
        if isinstance(answer, Streamed):
            return b"".join(answer.pieces)
        if isinstance(answer, InParts):
            return b"".join(answer.parts)
        return encode_record(cast(msgspec.Struct, answer))


def helpers_answer(operation: str, params: dict[str, object]) -> object:
    request = read_request({"operation": operation, "params": params})
    guard = PathGuard(plan())
    try:
        answer = json.loads(b"".join(codex_fs.reply(request, GuardedFiles(guard))))
    finally:
        os.close(guard.root)
    if answer["status"] == "error":
        return answer["payload"]["code"], answer["payload"]["message"]
    assert answer["payload"]["operation"] == operation
    return answer["payload"]["response"]


def grow(root: Path) -> None:
    """Make a tree with one of everything."""
    (root / "dir" / "sub").mkdir(parents=True)
    (root / "file").write_bytes(b"content")
    (root / "file").chmod(0o640)
    (root / "empty").touch()
    (root / "dir" / "inner").write_bytes(b"x" * 200_000)
    (root / "dir" / "sub" / "deep é").write_bytes(b"deep")
    os.mkfifo(root / "fifo")
    for name, target in (("link", "file"), ("dirlink", "dir"), ("dangling", "nowhere"), ("loop", "loop")):
        (root / name).symlink_to(target)


def look(root: Path) -> dict[str, tuple[int, object]]:
    """Describe a tree: mode and content of everything in it."""
    found: dict[str, tuple[int, object]] = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        content: object = None
        if stat.S_ISLNK(mode):
            content = os.readlink(path)
        elif stat.S_ISREG(mode):
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (mode, content)
    return found


PLACES = [
    *("", ".", "file", "empty", "dir", "dir/inner", "dir/sub", "dir/../file", "dir/new", "new", "a" * 256),
    *("fifo", "link", "dirlink", "dirlink/inner", "dangling", "loop", "missing", "missing/x", "file/x"),
]
_paths = st.sampled_from(PLACES)
_flags = st.sampled_from([None, True, False])
_contexts = st.sampled_from([None, None, None, DISABLED, RESTRICTED])
_contents = st.sampled_from(["", "eA==", "eHl6", "eB==", "*", b64(b"y" * 300_000)])
CALLS = st.one_of(
    st.tuples(
        st.sampled_from(["fs/readFile", "fs/getMetadata", "fs/canonicalize", "fs/readDirectory"]),
        st.fixed_dictionaries({"path": _paths}, optional={"sandbox": _contexts}),
    ),
    st.tuples(
        st.just("fs/writeFile"),
        st.fixed_dictionaries({"path": _paths, "dataBase64": _contents}, optional={"sandbox": _contexts}),
    ),
    st.tuples(
        st.just("fs/createDirectory"),
        st.fixed_dictionaries({"path": _paths}, optional={"recursive": _flags, "sandbox": _contexts}),
    ),
    st.tuples(
        st.just("fs/remove"),
        st.fixed_dictionaries(
            {"path": _paths}, optional={"recursive": _flags, "force": _flags, "sandbox": _contexts}
        ),
    ),
    st.tuples(
        st.just("fs/copy"),
        st.fixed_dictionaries(
            {"sourcePath": _paths, "destinationPath": _paths, "recursive": st.booleans()},
            optional={"sandbox": _contexts},
        ),
    ),
)


def placed(params: dict[str, Any], root: Path) -> dict[str, object]:
    """Return params whose paths are below a root."""
    return {
        name: f"{root}/{value}" if name.lower().endswith("path") else value for name, value in params.items()
    }


def comparable(answer: object, root: Path) -> object:
    """Take out of an answer what two trees cannot have in common: where they are, and times."""
    uri = PathUri.from_native(os.fsencode(root)).uri
    text = json.dumps(answer, ensure_ascii=False)
    answer = json.loads(text.replace(uri, "<uri>").replace(str(root), "<root>"))
    if isinstance(answer, dict):
        answer.pop("modifiedAtMs", None)
        entries = answer.get("entries", [])
        entries.sort(key=lambda entry: str(entry["fileName"]))
    return answer


@pytest.fixture(scope="module")
def sandboxed() -> Iterator[SandboxedFiles]:
    """The server's sandboxed operations, with a worker that stands in no view."""
    files, sandbox = FileService(Settings()), SandboxService(Settings(), {})
    service = SandboxedFiles(files, sandbox, start_plain_worker, Settings())
    service.within(FileSystemSandboxContext.from_json(RESTRICTED)).get_metadata(b"/")
    yield service
    service.close()
    sandbox.close()
    files.close()


@pytest.mark.keeps_open("the module's worker is started anew when a mount of the machine changes")
@given(calls=st.lists(CALLS, min_size=1, max_size=10))
def test_the_helper_does_and_answers_what_the_server_does(
    tmp_path_factory: pytest.TempPathFactory,
    sandboxed: SandboxedFiles,
    calls: list[tuple[str, dict[str, Any]]],
) -> None:
    base = Path(os.path.realpath(tmp_path_factory.mktemp("twins")))
    ours, theirs = base / "one", base / "two"
    grow(ours)
    grow(theirs)
    server = Server(sandboxed)
    try:
        for operation, params in calls:
            answered = comparable(helpers_answer(operation, placed(params, ours)), ours)
            expected = comparable(server.answer(operation, placed(params, theirs)), theirs)
            assert answered == expected, (operation, params)
        assert look(ours) == look(theirs)
    finally:
        server.files.close()


def test_times_are_the_servers(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    os.utime(tmp_path / "old", (-10, -10))
    server = Server()
    try:
        for path in ("/", "/proc/self/status", "/dev/null", str(tmp_path), str(tmp_path / "old")):
            params: dict[str, object] = {"path": path}
            answered = helpers_answer("fs/getMetadata", params)
            assert answered == server.answer("fs/getMetadata", params) or path.startswith("/proc")
    finally:
        server.files.close()


def test_a_long_listing_comes_in_pieces_that_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fs_operations, "_ENTRIES_AT_ONCE", 3)
    for name in range(8):
        (tmp_path / str(name)).touch()
    request = read_request({"operation": "fs/readDirectory", "params": {"path": str(tmp_path)}})
    pieces = list(fs_operations.perform(request))
    assert len(pieces) == 4
    names = [entry["fileName"] for entry in json.loads(b"".join(pieces))["entries"]]
    assert sorted(names) == list("01234567")
