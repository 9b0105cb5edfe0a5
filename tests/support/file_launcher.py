"""Puts file requests to the launcher of the one file alone, and to the program in this process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from execserver.protocol.errors import RpcError
from execserver.protocol.json_text import NotJson, parse
from helpers.codex_fs import reply
from helpers.fs_request import read_request
from tests.support.one_file import LIMIT_S, Box, Done

HELPER = "--codex-run-as-fs-helper"
HANDED_ON = b"execserver: there is no folder to unpack into\n"
# Where it may unpack nothing, what the launcher leaves to the program cannot be answered.
WITHOUT_TREE = {"EXECSERVER_CACHE_DIR": "not/absolute"}
FIRST_READ, MOST_READ = 4096, 1 << 20  # of a request: what any pipe holds, and what the launcher looks at


def asked(program: Path, request: bytes, *argv: str, stdout: int = subprocess.PIPE) -> Done:
    """Put a request to the launcher alone."""
    return subprocess.run(
        argv or ("execserver", HELPER),
        executable=program,
        input=request,
        env=WITHOUT_TREE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
    )


def is_left(done: Done) -> bool:
    """Tell whether the launcher has left a request to the program."""
    return done.returncode == 1 and done.stderr.startswith(HANDED_ON)


def answer(request: bytes) -> bytes:
    """Return the program's answer, empty for a request that it refuses to read."""
    try:
        return b"".join(reply(read_request(parse(request))))
    except (RpcError, NotJson):
        return b""


def answered(box: Box, request: bytes, stdout: int = subprocess.PIPE) -> Done:
    """Put a request to the file, which has its tree."""
    return subprocess.run(
        [box.program, HELPER],
        input=request,
        env=box.variables,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
    )


def request_of(operation: str, path: object, **params: object) -> bytes:
    """Return a request about a path."""
    return json.dumps({"operation": operation, "params": {"path": path, **params}}).encode()
