"""File requests that the launcher answers itself, as the program would; the others are left to that."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execserver.dispatch import NAMES, choose
from tests.support.file_launcher import (
    FIRST_READ,
    HELPER,
    MOST_READ,
    answer,
    answered,
    asked,
    is_left,
    request_of,
)
from tests.support.one_file import Box

MOST_CONTENT = 1 << 20

OPERATIONS = ("fs/getMetadata", "fs/readFile", "fs/readDirectory", "fs/canonicalize")
SIZES = (0, 1, 2, 3, 100, 3 * 65536 + 1, MOST_CONTENT)
LINKS = {"link": "f3", "up": ".", "nowhere": "gone", "loop": "loop", "pipe": "fifo"}
FILES = (*(f"f{size}" for size in SIZES), "old", "link", "up/f3")
FOLDERS = ("", "empty", "quoted", "up")
OF_ALL_KINDS = (*FILES, *FOLDERS, "odd", "fifo", "pipe", "large")
QUOTED = ('a"b', "a\\b", "a b", "#?%", ".hidden", "~", "\xe9", "\u20ac\U0001f600", "\x7f", "%2F")
REFUSED = ("gone", "gone/x", "nowhere", "f3/x")
NOT_PLAIN = ("loop", "f3/", "./f3", "up/../f3", "f3/.", "f%", "f%3", "%2Ff3", "%2e", "f%3g", "f%00")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of all kinds."""
    folder = tmp_path_factory.mktemp("ground")
    for size in SIZES:
        (folder / f"f{size}").write_bytes(bytes(at % 251 for at in range(size)))
    (folder / "large").write_bytes(bytes(MOST_CONTENT + 1))
    (folder / "old").touch()
    os.utime(folder / "old", ns=(-1, -1_500_000_000))
    os.mkfifo(folder / "fifo")
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    for name in ("empty", "quoted", "odd"):
        (folder / name).mkdir()
    for name in QUOTED:
        (folder / "quoted" / name).touch()
    (folder / "odd" / os.fsdecode(b"\xe9")).touch()
    return folder


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        *itertools.product(("fs/getMetadata", "fs/canonicalize"), OF_ALL_KINDS),
        *itertools.product(("fs/readFile",), FILES),
        *itertools.product(("fs/readDirectory",), FOLDERS),
    ],
)
@pytest.mark.parametrize("form", ["file://{}", "{}"])
def test_a_plain_request_is_answered_without_a_tree(
    program: Path, ground: Path, operation: str, name: str, form: str
) -> None:
    request = request_of(operation, form.format(ground / name), sandbox=None)
    done = asked(program, request)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", answer(request))
    assert json.loads(done.stdout)["status"] == "ok"


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        *itertools.product(OPERATIONS, NOT_PLAIN),
        *itertools.product(("fs/readFile",), ("fifo", "pipe", "empty", "large")),
        *itertools.product(("fs/readDirectory",), ("odd",)),
        *itertools.product(("fs/walk", "fs/open", "fs/unknown"), ("f3",)),
    ],
)
def test_what_is_not_plain_is_left_to_the_program(
    program: Path, ground: Path, operation: str, name: str
) -> None:
    assert is_left(asked(program, request_of(operation, f"file://{ground}/{name}")))


@pytest.mark.parametrize("operation", ["fs/getMetadata", "fs/canonicalize", "fs/readFile"])
@pytest.mark.parametrize("name", QUOTED)
def test_a_path_with_unusual_characters_is_understood(
    program: Path, ground: Path, operation: str, name: str
) -> None:
    path = ground / "quoted" / name
    for request in (request_of(operation, path.as_uri()), request_of(operation, str(path))):
        done = asked(program, request)
        assert is_left(done) == (b"\\" in request)
        assert is_left(done) or done.stdout == answer(request)


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        *itertools.product(OPERATIONS, REFUSED),
        *itertools.product(("fs/readDirectory",), ("f3", "fifo", "link")),
    ],
)
def test_what_the_kernel_refuses_is_told_without_a_tree(
    program: Path, ground: Path, operation: str, name: str
) -> None:
    request = request_of(operation, f"file://{ground}/{name}")
    done = asked(program, request)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", answer(request))
    assert json.loads(done.stdout)["status"] == "error"


@pytest.mark.parametrize("sandbox", [{}, {"permissions": {"type": "disabled"}}, [], False, ""])
def test_a_request_with_a_sandbox_is_left_to_the_program(program: Path, sandbox: object) -> None:
    assert is_left(asked(program, request_of("fs/getMetadata", "/", sandbox=sandbox)))


@pytest.mark.parametrize(
    "path", ["/proc/self/status", "/dev/null", "/C:", "/c|/x", "file://host/", "~", "", "x", 0]
)
def test_a_path_that_takes_more_than_a_look_is_left_to_the_program(program: Path, path: object) -> None:
    assert is_left(asked(program, request_of("fs/readFile", path)))


def test_a_time_that_is_too_far_to_count_is_left_to_the_program(one_file: Box) -> None:
    request = request_of("fs/getMetadata", f"file://{one_file.temporary}/x")
    done = one_file.run_in_new_mounts(
        'mount -t tmpfs none "$2"; touch -d "@$3" "$2/x";'
        f"echo '{request.decode()}' | EXECSERVER_CACHE_DIR=not/absolute \"$1\" codex-fs",
        *(one_file.temporary, str(1 << 61)),
    )
    assert is_left(done)


# Between and behind the parts of a request, and what its members may be.
SPACES = st.sampled_from(("", " ", "\n", "\t \r", "\0", "\ufeff", ",", "}", "x"))
BEGINNINGS = st.sampled_from(("", "", "file://", "file:", "FILE://", "file://localhost", "file:////", "~"))
PIECES = st.sampled_from(
    (
        *"/.:|%#?~ax\\ ",
        "%2e",
        "%2F",
        "%61",
        "%e9",
        "%00",
        "f3",
        "//",
        "..",
        "/.",
        "/..",
        "/GROUND",
        "/GROUND",
        "\xe9",
    )
)
OTHERS: st.SearchStrategy[object] = st.sampled_from([None, True, False, "/", 0, 1.5, {}, []])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request, or what is none any more; GROUND stands for the folder."""
    names = st.sampled_from(("sandbox", "followSymlinks", "recursive", "path", "x"))
    path: tuple[str, object] = "path", draw(BEGINNINGS) + "".join(draw(st.lists(PIECES, max_size=4)))
    members = draw(st.permutations([path, *draw(st.lists(st.tuples(names, OTHERS), max_size=2))]))
    params = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members)
    halves = [f'"operation":{json.dumps(draw(st.sampled_from(OPERATIONS)))}', f'"params":{{{params}}}']
    space = draw(st.lists(SPACES, min_size=3, max_size=3)) if draw(st.booleans()) else ["", "", ""]
    return f"{space[0]}{{{f'{space[1]},'.join(draw(st.permutations(halves)))}}}{space[2]}".encode()


@given(requests())
@example(b'{"operation":"fs/canonicalize","params":{"path":"/GROUND/up"},"params":{}}')
@example(b'{"params":{},"params":{"path":"/GROUND/up"},"operation":"fs/canonicalize"}')
@example(b'{"operation":"fs/canonicalize","params":{"path":"/GROUND/up"}}{}')
@example(b'{"operation":"fs/canonicalize","params":{"path":"/GROUND/up",}}')
@example(b'{"operation":"fs/canonicalize","params":{"path":"/GROUND/up"}')
@example(b'["fs/canonicalize",{"path":"/GROUND/up"}]')
def test_an_answer_of_the_launcher_is_that_of_the_program(program: Path, ground: Path, text: bytes) -> None:
    request = text.replace(b"/GROUND", os.fsencode(ground))
    done = asked(program, request)
    if not is_left(done):
        assert (done.returncode, done.stdout, done.stderr) == (0, answer(request), b"")


@pytest.mark.parametrize("word", ["", HELPER, "codex-fs", "--help"])
@pytest.mark.parametrize("name", [*NAMES, "codex", "execserver", "other", ""])
def test_the_launcher_answers_as_the_file_helper_and_as_no_other_program(
    program: Path, name: str, word: str
) -> None:
    argv = [f"/some/{name}", *filter(None, [word])]
    done = asked(program, request_of("fs/getMetadata", "/"), *argv)
    assert (b"isDirectory" in done.stdout) == (choose(argv)[0] == NAMES["codex-fs"])


@pytest.mark.unpacked
@pytest.mark.parametrize(
    "size", [0, *range(FIRST_READ - 1, FIRST_READ + 2), 300_000, MOST_READ, MOST_READ + 1]
)
def test_the_program_gets_the_whole_of_a_request_that_is_left_to_it(one_file: Box, size: int) -> None:
    one_file.temporary.joinpath("é").write_text("x" * size)
    request = request_of("fs/getMetadata", f"file://{one_file.temporary}/é").ljust(size)
    done = answered(one_file, request)
    assert (done.returncode, done.stdout, done.stderr) == (0, answer(request), b"")


@pytest.mark.unpacked
def test_a_request_that_stops_in_its_middle_is_refused_by_the_program(one_file: Box) -> None:
    done = answered(one_file, b'{"operation":"fs/getMetadata"')
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"fs sandbox helper failed: ")


@pytest.mark.unpacked
def test_an_answer_that_nobody_reads_ends_with_the_words_of_the_program(one_file: Box) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = answered(one_file, request_of("fs/getMetadata", "/"), stdout=theirs)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (1, b"fs sandbox helper failed: Broken pipe (os error 32)\n")
