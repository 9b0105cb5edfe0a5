"""Both helpers on their own, as an ordinary user to whom user namespaces are refused: what serves instead."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.backends import landlock_only
from execserver.sandbox.kernel import landlock
from execserver.sandbox.kernel.syscalls import Kernel
from tests.support.opened import open_source
from tests.support.peer import Json
from tests.support.roots import FREE_UID, give, open_folder
from tests.support.sandboxes import managed, read_only, rule, special, workspace_write
from tests.support.server_process import Flavour
from tests.support.ways import server_flavour

READ_ONLY = managed(special("root", "read"))
WORKSPACE = managed(special("root", "read"), special("project_roots", "write"))
BLOCKER = "a seccomp filter, as container programs set one, refuses user namespaces"
CURE = "seccomp=unconfined"


@pytest.fixture
def ws() -> Iterator[Path]:
    with open_folder() as folder:
        (folder / "ws").mkdir()
        (folder / "ws" / "f").write_text("hello")
        give(folder, FREE_UID)
        yield folder / "ws"


@pytest.fixture
def with_landlock() -> None:
    if landlock.abi(Kernel()) < landlock_only.LEAST_ABI:
        pytest.skip("this kernel has no Landlock of ABI 3 or newer")


def start(kind: str, ws: Path, *words: str, role: str = "codex-linux-sandbox") -> subprocess.Popen[bytes]:
    main = str(open_source() / "execserver" / "__main__.py")
    flavour = server_flavour(Flavour("helper", (sys.executable, "-I", main, role, *words), 0), kind)
    return subprocess.Popen(
        flavour.argv,
        cwd=ws,
        env={"PATH": "/usr/bin:/bin", **flavour.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def sandboxed(kind: str, ws: Path, profile: Json, script: str) -> tuple[int, str, str]:
    """Run a script with `codex-linux-sandbox`; return exit status, stdout and stderr."""
    options = ["--sandbox-policy-cwd", str(ws), "--permission-profile", json.dumps(profile)]
    with start(kind, ws, *options, "--", "sh", "-c", script) as process:
        out, err = process.communicate(b"typed", timeout=40)
    return process.returncode, out.decode(), err.decode()


def ask(ws: Path, operation: str, **params: object) -> Json:
    """Return the payload of what `codex-fs` answers."""
    with start("landlock-user", ws, role="--codex-run-as-fs-helper") as process:
        request = json.dumps({"operation": operation, "params": params}).encode()
        out, err = process.communicate(request, timeout=40)
    assert (process.returncode, err) == (0, b"")
    return json.loads(out)["payload"]


def test_bubblewrap_runs_the_command(ws: Path) -> None:
    script = f"cat; cat f; id -u; ls -d /proc/{os.getpid()}; echo x > g; exit 7"
    status, out, err = sandboxed("bubblewrap-user", ws, READ_ONLY, script)
    assert (status, out) == (7, f"typedhello{FREE_UID}\n"), err
    assert "Read-only file system" in err
    assert os.listdir(ws) == ["f"]


def test_bubblewrap_keeps_the_metadata_of_a_workspace(ws: Path) -> None:
    script = "echo x > g; mkdir .git/x; kill -TERM $$"
    status, _, err = sandboxed("bubblewrap-user", ws, WORKSPACE, script)
    assert (status, sorted(os.listdir(ws))) == (143, ["f", "g"]), err


def test_landlock_runs_the_command_without_bubblewrap(ws: Path, with_landlock: None) -> None:
    status, out, err = sandboxed("landlock-user", ws, READ_ONLY, "cat; cat f; echo x > g; exit 7")
    assert (status, out) == (7, "typedhello"), err
    assert "Permission denied" in err
    assert os.listdir(ws) == ["f"]
    script = "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status; kill -TERM $$"
    status, out, _ = sandboxed("landlock-user", ws, READ_ONLY, script)
    assert (status, out.split()[1::2]) == (143, ["1", "2"])


@pytest.mark.parametrize("kind", ["bubblewrap-user", "landlock-user"])
def test_signals_reach_the_command_and_it_ends_with_the_helper(
    ws: Path, with_landlock: None, kind: str
) -> None:
    options = ["--sandbox-policy-cwd", str(ws), "--permission-profile", json.dumps(READ_ONLY)]
    script = "trap 'echo got' TERM; echo ready; while :; do sleep 0.05; done"
    with start(kind, ws, *options, "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.stdout.readline() == b"got\n"
        process.kill()
        # The end of the pipe: nobody holds it any more.
        assert process.stdout.read() == b""


def test_a_command_that_cannot_be_run_under_landlock(ws: Path, with_landlock: None) -> None:
    options = ["--sandbox-policy-cwd", str(ws), "--permission-profile", json.dumps(READ_ONLY)]
    with start("landlock-user", ws, *options, "--", "/no/such") as process:
        _, err = process.communicate(timeout=40)
    text = b"codex-linux-sandbox: Failed to execvp /no/such: No such file or directory (os error 2)\n"
    assert (process.returncode, err) == (101, text)


def test_what_nothing_enforces_is_refused_with_blocker_and_cure(ws: Path) -> None:
    for profile in (WORKSPACE, managed(rule(ws, "write"))):
        status, out, err = sandboxed("landlock-user", ws, profile, "echo ran; touch ran")
        assert (status, out) == (1, "")
        assert err.startswith("codex-linux-sandbox: no sandbox can enforce this policy here: "), err
        assert BLOCKER in err
        assert CURE in err
    assert os.listdir(ws) == ["f"]


def test_a_program_put_into_the_workspace_is_no_bubblewrap(ws: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a program that looks trustworthy")
    fake = ws / "bin"
    fake.mkdir()
    (fake / "bwrap").write_text(f"#!/bin/sh\ntouch {ws}/ran\n")
    (fake / "bwrap").chmod(0o755)
    ws.chmod(0o755)
    os.chown(ws, 0, 0)
    os.chown(ws.parent, 0, 0)
    main = str(open_source() / "execserver" / "__main__.py")
    policy = ["--sandbox-policy-cwd", str(ws), "--permission-profile", json.dumps(WORKSPACE)]
    words = (sys.executable, "-I", main, "codex-linux-sandbox", *policy, "--", "true")
    flavour = server_flavour(Flavour("helper", words, 0), "landlock-user")
    env = {**flavour.env, "PATH": f"{fake}:{flavour.env['PATH']}"}
    done = subprocess.run(flavour.argv, cwd="/", env=env, capture_output=True, timeout=40, check=False)
    assert done.returncode == 1
    assert b"there is no bwrap" in done.stderr
    assert sorted(os.listdir(ws)) == ["bin", "f"]


def test_files_are_served_under_landlock(ws: Path, with_landlock: None) -> None:
    hello = {"dataBase64": base64.b64encode(b"hello").decode()}
    assert ask(ws, "fs/readFile", path=str(ws / "f"), sandbox=read_only(ws))["response"] == hello
    written = ask(ws, "fs/writeFile", path=str(ws / "g"), dataBase64="", sandbox=read_only(ws))
    assert written == {"code": -32600, "message": "Permission denied (os error 13)"}
    environ = ask(ws, "fs/readFile", path="/proc/self/environ", sandbox=read_only(ws))
    assert environ == {"code": -32600, "message": "Permission denied (os error 13)"}
    assert os.listdir(ws) == ["f"]


def test_files_that_nothing_protects_are_refused_with_blocker_and_cure(ws: Path) -> None:
    (ws.parent / "other").mkdir()
    for policy in (workspace_write(ws), read_only(ws, rule(ws.parent / "other", "deny"))):
        answer = ask(ws, "fs/writeFile", path=str(ws / "g"), dataBase64="", sandbox=policy)
        assert answer["code"] == -32600
        assert answer["message"].startswith("failed to prepare fs sandbox: "), answer
        assert BLOCKER in answer["message"]
        assert CURE in answer["message"]
    assert os.listdir(ws) == ["f"]
