"""What the launcher must not have done where the program comes after it: read what is read once, or made what
its owner may not open again."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.files.inotify import Inotify
from tests.support.file_launcher import asked, is_left, request_of
from tests.support.one_file import Box

IN_ACCESS = 1
PSEUDO = Path("/proc/sys/kernel/random/uuid")  # says that it is empty


@pytest.fixture
def readings() -> Iterator[Inotify]:
    """Tells of each reading of that file."""
    watch = Inotify()
    watch.watch(bytes(PSEUDO), IN_ACCESS)
    yield watch
    watch.close()


def test_of_a_file_that_only_says_it_is_empty_the_launcher_reads_nothing(
    program: Path, readings: Inotify
) -> None:
    """Some give each byte once, as /proc/kmsg does."""
    assert is_left(asked(program, request_of("fs/readFile", str(PSEUDO))))
    copying = {"sourcePath": str(PSEUDO), "destinationPath": "/gone/x", "recursive": False}
    request = json.dumps({"operation": "fs/copy", "params": copying}).encode()
    assert is_left(asked(program, request))
    assert [*readings.read()] == []
    PSEUDO.read_text()
    assert [*readings.read()] != []  # it would have been seen


@pytest.mark.parametrize("umask", ["0200", "0266"])
def test_a_new_file_that_its_owner_may_not_write_again_is_refused_at_once_where_no_room_is(
    umask: str, one_file: Box
) -> None:
    """The program could not open what the launcher has made, and would say that instead."""
    content = base64.b64encode(b"x" * 10_000).decode()
    path = f"file://{one_file.temporary}/new"
    request = json.dumps({"operation": "fs/writeFile", "params": {"path": path, "dataBase64": content}})
    (one_file.temporary.parent / "request").write_text(request)
    done = one_file.run_in_new_mounts(
        'mount -t tmpfs -o size=4096 none "$2"; umask $4;'
        'EXECSERVER_CACHE_DIR=not/absolute "$1" codex-fs <"$3" && stat -c %s "$2/new"',
        *(one_file.temporary, one_file.temporary.parent / "request", umask),
    )
    told, size = done.stdout.splitlines()
    reason = {"code": -32603, "message": "No space left on device (os error 28)"}
    assert json.loads(told) == {"status": "error", "payload": reason}
    assert size == b"0"
