"""When a shell snapshot is used, what of a capture is kept, and what becomes of the command."""

from __future__ import annotations

import subprocess

import pytest

from execserver.core.env_policy import child_environment
from execserver.core.shell_scripts import PART_BYTES
from execserver.core.shell_snapshot import (
    MAX_STATE_BYTES,
    Snapshot,
    capture_command,
    is_complete,
    is_wanted,
    snapshot_of,
)
from execserver.protocol.environment import ShellInfo
from execserver.protocol.errors import InvalidParams
from execserver.protocol.process import ExecEnvPolicy, ExecEnvPolicyInherit, ShellSnapshotRequest

MARK = "m1"
PATH = {"PATH": "/usr/bin:/bin"}


def request(name: str = "bash", scope: str = "sc") -> ShellSnapshotRequest:
    path = "/bin/sh" if name == "sh" else "/bin/bash"
    return ShellSnapshotRequest(scope_id=scope, shell=ShellInfo(name=name, path=path))


def printed(exports: bytes = b"A=1\0", **sections: bytes) -> bytes:
    """Return what a capture prints, with noise before it."""
    parts = [f"\nm1:{name}\n".encode() + text for name, text in sections.items()]
    return b"welcome\n" + b"".join(parts) + b"\nm1:exports\n" + exports + b"\nm1:end\n"


def taken(family: str = "bash", given: dict[bytes, bytes] | None = None, **sections: bytes) -> Snapshot:
    found = snapshot_of(family, printed(**sections), MARK, given or {})
    assert found is not None
    return found


@pytest.mark.parametrize("scope", ["", "x" * 257, "é" * 129])
def test_a_scope_has_bounds(scope: str) -> None:
    with pytest.raises(InvalidParams, match="must be non-empty and at most 256 bytes"):
        is_wanted(["/bin/bash", "-c", "x"], request(scope=scope))


def test_only_login_commands_of_the_shell_itself_have_one() -> None:
    assert is_wanted(["/bin/bash", "-lc", "x"], request(scope="x" * 256))
    for argv in (["/bin/bash", "-c", "x"], ["/usr/bin/bash", "-lc", "x"], ["/bin/bash", "-lc"], []):
        assert not is_wanted(argv, request())
        assert not is_wanted(argv, request("fish"))


@pytest.mark.parametrize("name", ["fish", "powershell", "", "Bash"])
def test_other_shells_are_refused(name: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        is_wanted(["/bin/bash", "-lc", "x"], request(name))
    assert refused.value.message == f"shell snapshots are unsupported for shell `{name}`"


def test_a_capture_is_complete_at_its_last_line() -> None:
    assert is_complete(printed(), MARK)
    assert not is_complete(printed()[:-1], MARK)
    assert not is_complete(printed(), "m2")


@pytest.mark.parametrize("output", [b"", b"x", printed()[:-8], printed().replace(b"m1:exports", b"m2:x")])
def test_an_incomplete_capture_is_none(output: bytes) -> None:
    assert snapshot_of("bash", output, MARK, {}) is None


def test_a_capture_that_is_too_large_is_none() -> None:
    functions = b"f() { :; }\n" * (MAX_STATE_BYTES // 11 + 1)
    assert snapshot_of("bash", printed(functions=functions), MARK, {}) is None
    assert snapshot_of("bash", printed(b"A=" + b"x" * MAX_STATE_BYTES), MARK, {}) is None


def test_exports_are_those_the_start_up_files_set() -> None:
    exports = b"A=1\0B=two\nlines\0PWD=/x\0OLDPWD=/y\0_=z\0BASH_FUNC_f%%=() { :; }\0MINE=m\0CHANGED=c\0bad"
    found = taken(exports=exports, given={b"MINE": b"m", b"CHANGED": b"b"})
    assert found.exports == {b"A": b"1", b"B": b"two\nlines", b"CHANGED": b"c"}


def test_options_of_interactive_and_login_shells_are_left_out() -> None:
    options = b"set -o noclobber\nset -o monitor\nset -o histexpand\nset +o privileged\necho no\n"
    found = taken(options=options, toggles=b"shopt -s nullglob\nshopt -s login_shell\necho\n")
    assert found.state == b"\nshopt -s nullglob\nset -o noclobber\n\n:\n"


def test_aliases_of_sh_are_put_into_the_form_for_input() -> None:
    found = taken("sh", aliases=b"ll='ls -l'\nalias la='ls -a'\nx='a\necho\n$(y)=1\n")
    assert found.state == b"\nalias ll='ls -l'\nalias la='ls -a'\n:\n"


def test_the_command_keeps_its_words() -> None:
    argv = taken().command(["/bin/bash", "-lc", "echo $0", "zero", "one"])
    assert (argv[:2], argv[3:]) == (["/bin/bash", "-pc"], ["zero", "one"])
    assert argv[2].endswith("\necho $0")
    assert taken("zsh").command(["/bin/zsh", "-lc", "x"])[1] == "-fc"
    assert taken("sh").command(["/bin/sh", "-lc", "x"])[1] == "-c"


def test_exports_stand_below_the_request_and_pass_its_filters() -> None:
    exports = {b"A": b"rc", b"B": b"rc", b"C": b"rc", b"API_KEY": b"rc", b"PATH": b"rc"}
    policy = ExecEnvPolicy(
        inherit=ExecEnvPolicyInherit.ALL,
        ignore_default_excludes=False,
        exclude=("C*",),
        set={"B": "set"},
        include_only=(),
    )
    found = child_environment({b"A": b"server", b"D": b"server"}, policy, PATH, exports)
    assert found == {b"A": b"rc", b"B": b"set", b"D": b"server", b"PATH": b"/usr/bin:/bin"}
    assert child_environment({b"D": b"server"}, None, {"A": "env"}, exports)[b"A"] == b"env"


def shell_says(family: str, setup: str, command: str, *words: str) -> tuple[str, str]:
    """Capture a shell after some setup, run a command with the state; return its output."""
    argv = capture_command(request(family), MARK)
    captured = subprocess.run(
        [argv[0], "-c", f"{setup}\n{argv[2]}"], env=PATH, capture_output=True, timeout=30
    ).stdout
    found = snapshot_of(family, captured, MARK, {})
    assert found is not None, captured
    env = child_environment({}, None, PATH, found.exports) | found.variables()
    restored = found.command([argv[0], "-lc", command, *words])
    done = subprocess.run(restored, env=env, capture_output=True, timeout=30)
    return done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("family", ["bash", "sh"])
def test_aliases_exports_and_options_come_back(family: str) -> None:
    setup = "alias hi='echo hello'; export FROM=rc; PLAIN=x; set -o noclobber"
    out, errors = shell_says(family, setup, 'alias hi; echo "$FROM,$PLAIN,$0,$1"; set +o', "zero", "one")
    lines = out.splitlines()
    assert lines[0].removeprefix("alias ") == "hi='echo hello'"
    assert lines[1] == "rc,,zero,one"
    assert "set -o noclobber" in lines
    assert errors == ""


def test_functions_come_back_and_no_trace_of_the_way() -> None:
    setup = "f() { echo \"f:$1 é ' \\\" \\\\\"; }; export -f f; shopt -s expand_aliases; alias g='f G'"
    out, errors = shell_says("bash", setup, "f x\ng\nbash -c 'f child'\nenv; echo ${!__CODEX@} $-")
    assert out.splitlines()[:3] == ["f:x é ' \" \\", "f:G é ' \" \\", "f:child é ' \" \\"]
    assert "SNAPSHOT_STATE" not in out
    assert errors == ""


def test_a_state_of_many_parts_comes_back() -> None:
    setup = 'for n in $(seq 2500); do printf -v long %080d $n; eval "f$n() { echo $n $long; }"; done'
    assert shell_says("bash", setup, "f1 | cut -c1-2; f2500 | cut -c1-5")[0] == "1 \n2500 \n"


def test_a_state_that_fails_is_told_and_the_command_runs() -> None:
    snapshot = Snapshot("bash", b"f( {\n", {})
    argv = snapshot.command(["/bin/bash", "-lc", "echo ran"])
    env = child_environment({}, None, PATH) | snapshot.variables()
    done = subprocess.run(argv, env=env, capture_output=True, timeout=30)
    assert done.stdout == b"ran\n"
    assert done.stderr.endswith(b"failed to restore shell snapshot\n")


def test_the_state_is_cut_into_variables_that_the_kernel_takes() -> None:
    snapshot = Snapshot("bash", b"x" * (2 * PART_BYTES + 1), {})
    assert [len(value) for value in snapshot.variables().values()] == [PART_BYTES, PART_BYTES, 1]


def test_a_shell_of_another_family_prints_nothing() -> None:
    argv = capture_command(request("zsh"), MARK)
    done = subprocess.run(["/bin/bash", "-c", argv[2]], env=PATH, capture_output=True, timeout=30)
    assert snapshot_of("zsh", done.stdout, MARK, {}) is None
