"""File requests that change something: what the launcher makes of them is what the program would have made.

Every request is played twice on the same ground: to the launcher, and to the program where that leaves it;
and to the program alone.  The answers and what is there afterwards have to be the same.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.file_launcher import FIRST_READ, MOST_READ, answer, answered, asked, is_left, request_of
from tests.support.one_file import Box

OLD = 1_000_000_000  # seconds: when everything on the ground was written
LEVELS = 64  # of a tree that the launcher removes
MOST_CONTENT, MOST_ENTRIES = 1 << 20, 512  # of what the launcher copies
LINKS = {
    "link": "file",
    "nowhere": "new",
    "loop": "loop",
    "inside": "folder",
    "out": "folder/gone/x",
    "folder/up": "..",
    "to-fifo": "fifo",
}
FILES = {
    "file": 0o640,
    "empty": 0o644,
    "folder/file": 0o755,
    "folder/sub/deep": 0o600,
    "into/file": 0o4711,
    "tree/file": 0o600,
    "tree/sub/file": 0o644,
    "tree/sub/low/empty": 0o777,
}
PATHS = (
    *(*FILES, *LINKS, "fifo", "same", "folder", "hollow", "folder/sub", "into", "new", "folder/new"),
    *(
        "new/below",
        "new/far/below",
        "file/x",
        "link/x",
        "inside/new",
        "inside/sub",
        "nowhere/x",
        "folder/up/new",
    ),
    *("into/sub", "to-fifo/x", "loop/x", "hollow/" + "n" * 300, "hollow/a/" + "n" * 300 + "/b"),
)

NOT_PLAIN: tuple[dict[str, object], ...] = (
    {"followSymlinks": False},
    {"sandbox": {}},
    {"recursive": 1},
    {"force": "x"},
)

Found = dict[str, tuple[int, bytes, bool, int]]  # mode, content or target, whether it is as old, links


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changed") / "ground"


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=oct)
def mask(request: pytest.FixtureRequest) -> Iterator[None]:
    """A mask of the process and of those that it starts."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def made(ground: Path) -> None:
    """Make the ground, in the place of what a request has left of it."""
    if ground.exists():
        shutil.rmtree(ground)
    for name in ("folder/sub", "hollow", "into", "tree/sub/low"):
        (ground / name).mkdir(parents=True)
    for name, mode in FILES.items():
        (ground / name).write_bytes(b"" if name == "empty" else name.encode() * 9)
        (ground / name).chmod(mode)
    (ground / "same").hardlink_to(ground / "file")
    os.mkfifo(ground / "fifo")
    for name, target in LINKS.items():
        (ground / name).symlink_to(target)
    for path in [*ground.rglob("*"), ground]:
        os.utime(path, (OLD, OLD), follow_symlinks=False)


def found(ground: Path) -> Found:
    """Return what is on the ground."""
    every: Found = {}
    for path in [ground, *ground.rglob("*")] if ground.exists() else []:
        status = path.lstat()
        data = b""
        if path.is_symlink():
            data = os.fsencode(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            data = path.read_bytes()
        links = 0 if path.is_dir() else status.st_nlink
        every[str(path.relative_to(ground))] = status.st_mode, data, status.st_mtime == OLD, links
    return every


def played(program: Path, ground: Path, request: bytes) -> bool:
    """Play a request to both and compare; return whether the launcher has left it to the program."""
    made(ground)
    done = asked(program, request)
    left = is_left(done)
    told = answer(request) if left else done.stdout
    after = found(ground)
    assert left or (done.returncode, done.stderr) == (0, b"")
    made(ground)
    assert (told, after) == (answer(request), found(ground))
    return left


def writing(path: Path, content: bytes) -> bytes:
    return request_of("fs/writeFile", f"file://{path}", dataBase64=base64.b64encode(content).decode())


@pytest.mark.parametrize("content", [b"", b"x", b"other", bytes(range(256)) * 4])
@pytest.mark.parametrize(
    "name", ["file", "empty", "into/file", "same", "link", "nowhere", "new", "inside/new"]
)
def test_a_file_is_written_without_a_tree(
    program: Path, ground: Path, mask: None, name: str, content: bytes
) -> None:
    assert not played(program, ground, writing(ground / name, content))


@pytest.mark.parametrize("recursive", [None, True, False])
@pytest.mark.parametrize("name", ["new", "new/below", "new/far/below", "folder", "inside", "inside/new"])
def test_a_folder_is_made_or_refused_without_a_tree(
    program: Path, ground: Path, mask: None, name: str, recursive: bool | None
) -> None:
    request = request_of("fs/createDirectory", f"{ground}/{name}", recursive=recursive)
    assert not played(program, ground, request)


@pytest.mark.parametrize("recursive", [None, True, False])
@pytest.mark.parametrize("force", [None, True, False])
@pytest.mark.parametrize(
    "name", ["file", "link", "nowhere", "fifo", "folder", "hollow", "inside", "new", "new/x"]
)
def test_something_is_removed_or_that_is_refused_without_a_tree(
    program: Path, ground: Path, name: str, force: bool | None, recursive: bool | None
) -> None:
    request = request_of("fs/remove", f"file://{ground}/{name}", recursive=recursive, force=force)
    assert not played(program, ground, request)


@pytest.mark.parametrize("operation", ["fs/writeFile", "fs/createDirectory", "fs/remove"])
@pytest.mark.parametrize("path", ["/sys/kernel/new", "/proc/new", "/dev/null/x"])
def test_what_the_kernel_refuses_is_told_without_a_tree(program: Path, operation: str, path: str) -> None:
    request = request_of(operation, path, dataBase64="", recursive=False, force=False)
    done = asked(program, request)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", answer(request))
    assert json.loads(done.stdout)["status"] == "error"


@pytest.mark.parametrize(
    ("operation", "params"),
    [
        ("fs/writeFile", {"dataBase64": "aGk"}),
        ("fs/writeFile", {"dataBase64": "aGl="}),
        ("fs/writeFile", {"dataBase64": "a=k="}),
        ("fs/writeFile", {"dataBase64": "===="}),
        ("fs/writeFile", {"dataBase64": "aG k"}),
        ("fs/writeFile", {"dataBase64": "aG-_"}),
        ("fs/writeFile", {"dataBase64": "aGk=aGk="}),
        ("fs/writeFile", {"dataBase64": None}),
        ("fs/writeFile", {}),
        *(
            (operation, {"dataBase64": "", **member})
            for operation in ("fs/writeFile", "fs/createDirectory", "fs/remove")
            for member in NOT_PLAIN
        ),
    ],
)
def test_what_is_not_plain_is_left_before_anything_is_done(
    program: Path, ground: Path, operation: str, params: dict[str, object]
) -> None:
    made(ground)
    before = found(ground)
    assert is_left(asked(program, request_of(operation, f"{ground}/hollow", **params)))
    assert is_left(asked(program, request_of(operation, f"{ground}/file", **params)))
    assert found(ground) == before


def copying(ground: Path, source: str, destination: str, *, recursive: object = False) -> bytes:
    params = {"sourcePath": f"file://{ground}/{source}", "destinationPath": f"{ground}/{destination}"}
    return json.dumps({"operation": "fs/copy", "params": {**params, "recursive": recursive}}).encode()


@pytest.mark.parametrize(
    "target", ["new", "file", "empty", "into/file", "nowhere", "inside/new", "tree/sub/file"]
)
@pytest.mark.parametrize("source", ["folder/file", "folder/sub/deep", "into/file", "empty", "loop", "out"])
def test_a_file_or_a_symlink_is_copied_without_a_tree(
    program: Path, ground: Path, mask: None, source: str, target: str
) -> None:
    left = played(program, ground, copying(ground, source, target))
    taken = source in LINKS and target not in {"new", "inside/new"}
    assert left == (taken or source == target or (source == "empty" and target == source))


@pytest.mark.parametrize("target", ["new", "new/far/below", "hollow", "into", "inside/new", "folder/up/new"])
@pytest.mark.parametrize("source", ["tree", "tree/sub", "hollow", "into"])
def test_a_small_tree_of_files_is_copied_without_a_tree(
    program: Path, ground: Path, mask: None, source: str, target: str
) -> None:
    left = played(program, ground, copying(ground, source, target, recursive=True))
    assert left == (source == target)


@pytest.mark.parametrize(
    ("source", "target", "recursive"),
    [
        *[("file", "new", None), ("file", "new", 0), ("tree", "hollow", False), ("fifo", "new", True)],
        *[("file", "link", False), ("file", "same", False), ("file", "fifo", False), ("file", "tree", False)],
        *[("tree", "tree", True), ("tree", "tree/new", True), ("tree/sub", "tree/sub/low/x/y", True)],
        *[("folder", "new", True), ("folder", "into", True), ("folder", "inside/sub", True)],
        *[
            ("tree", "file", True),
            ("tree", "file/x", True),
            ("hollow", "nowhere", True),
            ("tree", "loop/x", True),
        ],
    ],
)
def test_a_copy_that_is_not_plain_is_left_before_anything_is_done(
    program: Path, ground: Path, source: str, target: str, recursive: object
) -> None:
    made(ground)
    before = found(ground)
    assert is_left(asked(program, copying(ground, source, target, recursive=recursive)))
    assert found(ground) == before


@pytest.mark.parametrize("source", ["tree/sub/file", "tree/sub", "tree"])
def test_what_its_owner_may_not_write_twice_is_left_before_anything_is_done(
    program: Path, ground: Path, source: str
) -> None:
    """The program could not begin anew: it would be refused what the launcher has made."""
    made(ground)
    (ground / "tree/sub/file").chmod(0o444)
    before = found(ground)
    assert is_left(asked(program, copying(ground, source, "new", recursive=True)))
    assert found(ground) == before


def test_a_copy_of_nothing_is_refused_without_a_tree(program: Path, ground: Path) -> None:
    assert not played(program, ground, copying(ground, "gone", "new"))


def test_a_large_file_one_with_holes_and_a_large_tree_are_left(program: Path, tmp_path: Path) -> None:
    for name, size, data in (
        ("large", MOST_CONTENT, b"x"),
        ("small", MOST_CONTENT - 1, b"x"),
        ("holes", 99999, b""),
    ):
        (tmp_path / name).write_bytes(data * (size + 1))
        os.truncate(tmp_path / name, size + 1)
        left = is_left(asked(program, copying(tmp_path, name, "copied")))
        assert (left, (tmp_path / "copied").exists()) == (name != "small", name == "small")
        (tmp_path / "copied").unlink(missing_ok=True)
    (tmp_path / "tree").mkdir()
    for number in range(MOST_ENTRIES + 1):
        (tmp_path / "tree" / str(number)).touch()
    assert is_left(asked(program, copying(tmp_path, "tree", "copied", recursive=True)))
    assert not (tmp_path / "copied").exists()


FLAGS = st.sampled_from((None, True, False, True, False, 0))
PADDED = st.text(alphabet="AQgw8/+=zZ-\u0141", max_size=9)
CONTENTS = st.binary(max_size=200).map(lambda content: base64.b64encode(content).decode()) | PADDED
NAMES = st.sampled_from(PATHS)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request with what its operation needs, often with more; GROUND stands for the folder."""
    operation = draw(st.sampled_from(("fs/writeFile", "fs/createDirectory", "fs/remove", "fs/copy")))
    paths = ("sourcePath", "destinationPath") if operation == "fs/copy" else ("path",)
    members: list[tuple[str, object]] = [
        (name, f"{draw(st.sampled_from(('file://', '')))}/GROUND/{draw(NAMES)}") for name in paths
    ]
    if operation == "fs/copy":
        members.append(("recursive", draw(st.booleans())))
    if operation == "fs/writeFile":
        members.append(("dataBase64", draw(CONTENTS)))
    flags = st.sampled_from(("recursive", "force", "followSymlinks", "sandbox"))
    members += draw(st.lists(st.tuples(flags, FLAGS), max_size=3))
    params = ",".join(
        f"{json.dumps(name)}:{json.dumps(value)}" for name, value in draw(st.permutations(members))
    )
    return f'{{"operation":{json.dumps(operation)},"params":{{{params}}}}}'.encode()


@given(requests())
@example(b'{"operation":"fs/remove","params":{"path":"/GROUND/file","path":"/GROUND/empty"}}')
@example(b'{"operation":"fs/remove","params":{"path":"/GROUND/file"},"params":{"force":true}}')
@example(b'{"operation":"fs/remove","params":{"force":true},"params":{"path":"/GROUND/folder/new"}}')
@example(b'{"operation":"fs/remove","params":{"sourcePath":"/GROUND/file","force":true}}')
@example(b'{"operation":"fs/copy","params":{"path":"/GROUND/file","destinationPath":"/GROUND/new"}}')
@example(b'{"operation":"fs/copy","operation":"fs/remove","params":{"path":"/GROUND/file"}}')
@example(b'{"operation":"fs/createDirectory","params":{"path":"/GROUND/new"}}x')
def test_a_change_by_the_launcher_is_that_of_the_program(program: Path, ground: Path, text: bytes) -> None:
    played(program, ground, text.replace(b"/GROUND", os.fsencode(ground)))


@pytest.mark.unpacked
@pytest.mark.parametrize("size", [*range(FIRST_READ - 1, FIRST_READ + 2), 300_000, MOST_READ - 1, MOST_READ])
def test_a_content_is_written_whole_however_long_its_request(one_file: Box, size: int) -> None:
    target = one_file.temporary / "written"
    head = len(writing(target, b""))
    content = os.urandom((size - head) // 4 * 3)
    request = writing(target, content).ljust(size)
    assert len(request) == size
    done = answered(one_file, request)
    assert (done.returncode, done.stderr, json.loads(done.stdout)["status"]) == (0, b"", "ok")
    assert target.read_bytes() == content
    target.unlink()
    assert is_left(asked(one_file.program, request)) == (size == MOST_READ)


def test_a_tree_of_more_levels_than_the_launcher_takes_is_removed_by_the_program(
    program: Path, tmp_path: Path
) -> None:
    for levels, left in ((LEVELS, False), (LEVELS + 1, True)):
        folder = tmp_path / "tree"
        folder.joinpath(*"x" * (levels - 1)).mkdir(parents=True)
        request = request_of("fs/remove", str(folder))
        assert is_left(asked(program, request)) == left
        if left:
            assert json.loads(answer(request))["status"] == "ok"
        assert not folder.exists()


@pytest.mark.parametrize("folder", ["/", "/self"])
def test_the_root_is_removed_by_no_name(one_file: Box, folder: str) -> None:
    """In a root of its own, that is there a second time."""
    request = json.dumps({"operation": "fs/remove", "params": {"path": folder}})
    root = one_file.temporary / "root"
    (root / "self").mkdir(parents=True)
    done = one_file.run_in_new_mounts(
        'cp "$1" "$2/x"; touch "$2/kept"; mount --bind "$2" "$2"; mount --bind "$2" "$2/self";'
        f'echo \'{request}\' | EXECSERVER_CACHE_DIR=not/absolute chroot "$2" /x codex-fs || ls "$2"',
        root,
    )
    assert done.stdout.split() == [b"kept", b"self", b"x"]


@pytest.mark.unpacked
def test_a_content_above_the_limit_on_files_is_refused_as_by_the_program(one_file: Box) -> None:
    for name, before in (("new", None), ("empty", b""), ("short", b"short"), ("long", bytes(3000))):
        target = one_file.temporary / name
        if before is not None:
            target.write_bytes(before)
        done = subprocess.run(
            [one_file.program, "codex-fs"],
            input=writing(target, b"x" * 2000),
            env=one_file.variables,
            capture_output=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
            check=False,
        )
        assert json.loads(done.stdout)["payload"]["message"] == "File too large (os error 27)"
        assert target.read_bytes() == (b"x" * 1000 if before else b"")


def test_what_was_done_is_not_done_again_where_nobody_reads_the_answer(program: Path, tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    for request in (
        request_of("fs/createDirectory", str(tmp_path / "new"), recursive=False),
        request_of("fs/remove", str(tmp_path / "new"), force=False),
    ):
        done = asked(program, request, stdout=theirs)
        assert (done.returncode, done.stderr) == (
            1,
            b"fs sandbox helper failed: Broken pipe (os error 32)\n",
        )
    os.close(theirs)
    assert not list(tmp_path.iterdir())
