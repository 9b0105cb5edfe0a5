"""Rows of the helpers that are programs of their own: each is started, does one thing and ends.

With a cache folder that was never used, ours unpacks itself first; the reference is one file and unpacks
nothing, so its two figures are the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping

from bench.client import Gone
from bench.rows import Row, Setting, median_s
from bench.sandbox_rows import WORKSPACE_WRITE

_TIMEOUT_S = 60


def _file_helper(setting: Setting, env: Mapping[str, str]) -> None:
    file = setting.folder / "small"
    file.write_bytes(b"x" * 100)
    request = {"operation": "fs/getMetadata", "params": {"path": file.as_uri()}}
    done = _started(setting, ["--codex-run-as-fs-helper"], env, json.dumps(request).encode())
    if json.loads(done).get("status") != "ok":
        raise Gone(f"the file helper answered {done[:200]!r}")


def _sandbox_helper(setting: Setting, env: Mapping[str, str]) -> None:
    link = setting.folder / "codex-linux-sandbox"
    if not link.is_symlink():
        link.symlink_to(setting.program)
    profile = json.dumps(WORKSPACE_WRITE)
    words = ["--sandbox-policy-cwd", str(setting.folder), "--permission-profile", profile, "--", "/bin/true"]
    _started(setting, words, env, program=str(link))


def _started(
    setting: Setting, words: list[str], env: Mapping[str, str], sent: bytes = b"", program: str = ""
) -> bytes:
    done = subprocess.run(
        [program or setting.program, *words],
        input=sent,
        capture_output=True,
        env=env,
        cwd=setting.folder,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise Gone(f"a helper ended with {done.returncode}: {done.stderr[-200:]!r}")
    return done.stdout


def _warm(helper: Callable[[Setting, Mapping[str, str]], None]) -> Callable[[Setting], float]:
    def measure(setting: Setting) -> float:
        helper(setting, os.environ)
        return median_s(lambda: helper(setting, os.environ), setting.scaled(40, 8)) * 1e3

    return measure


def _cold(helper: Callable[[Setting, Mapping[str, str]], None]) -> Callable[[Setting], float]:
    def once(setting: Setting) -> None:
        with tempfile.TemporaryDirectory(prefix="bench-unpacked-") as folder:
            helper(setting, {**os.environ, "EXECSERVER_CACHE_DIR": folder})

    def measure(setting: Setting) -> float:
        return median_s(lambda: once(setting), setting.scaled(7, 2)) * 1e3

    return measure


HELPER_ROWS = [
    Row("fs_warm", "codex-fs, one request", "ms", False, _warm(_file_helper)),
    Row("fs_cold", "the same, nothing unpacked", "ms", False, _cold(_file_helper)),
    Row("box_warm", "codex-linux-sandbox, /bin/true", "ms", False, _warm(_sandbox_helper)),
    Row("box_cold", "the same, nothing unpacked", "ms", False, _cold(_sandbox_helper)),
]
