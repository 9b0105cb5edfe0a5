"""Rules files that want too much end with their process, not with ours."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from execserver.mcp import rules_process
from execserver.mcp.rules_process import EvaluationError, Source, evaluate_all
from execserver.rules.policy import ALLOW, HostExecutable, Policy, Rule
from tests.support.source import ROOT

GOOD = Source("/good.rules", 'prefix_rule(["a"])')
SHORT_S = 3.0  # the file before is done by then on a busy machine, too
LOOPS = """
for a in range(1000):
    for b in range(100000):
        for c in range(100000):
            pass
"""
PATIENCE_S = 50.0  # memory runs out before time does, on a busy machine too
# Each of these would kill whoever evaluates it.
FATAL = {
    "doubled list": "x = [0]\nfor i in range(60):\n    x = x + x\n",
    "long list": "x = list(range(2000000000))",
    "deep expression": "x = " + "-" * 100_000 + "1",
    "deep list": "x = " + "[" * 100_000 + "]" * 100_000,
    "deep value": "x = []\nfor i in range(1000000):\n    x = [x]\ny = repr(x)\n",
}


def refused(sources: list[Source], limit_s: float = rules_process.TIME_LIMIT_S) -> EvaluationError:
    with pytest.raises(EvaluationError) as caught:
        evaluate_all(sources, limit_s)
    return caught.value


def test_all_files_make_one_policy_in_their_order() -> None:
    second = Source("/second.rules", '\nprefix_rule(["b"])\nhost_executable("b", ["/bin/b"])')
    assert evaluate_all([GOOD, second]) == Policy(
        [Rule((("a",),), ALLOW, "/good.rules:1"), Rule((("b",),), ALLOW, "/second.rules:2")],
        [HostExecutable("b", ("/bin/b",))],
    )


def test_the_first_broken_file_is_named() -> None:
    error = refused([GOOD, Source("/bad.rules", "foo()"), Source("/worse.rules", "(")])
    assert error.path == "/bad.rules"
    assert str(error).startswith("starlark error: error: Variable `foo` not found")


def test_endless_work_ends() -> None:
    error = refused([GOOD, Source("/slow.rules", LOOPS)], SHORT_S)
    assert (error.path, str(error)) == ("/slow.rules", "its evaluation takes longer than 3 s")


@pytest.mark.parametrize("name", FATAL)
def test_a_crash_is_told(name: str) -> None:
    error = refused([GOOD, Source("/fatal.rules", FATAL[name]), GOOD], PATIENCE_S)
    assert error.path == "/fatal.rules"
    assert str(error).startswith("its evaluation ")
    assert str(error).endswith(": it nests too deep, or needs more than 512 MiB of memory")


def test_the_evaluator_is_loaded_by_the_child_only() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from execserver.mcp.rules_process import Source, evaluate_all\n"
        f"print(len(evaluate_all([Source('/a.rules', {GOOD.text!r})]).rules), 'starlark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, timeout=30, check=True)
    assert done.stdout == b"1 False\n"


def test_it_works_where_stdin_and_stdout_are_closed() -> None:
    code = (
        f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); os.close(0); os.close(1)\n"
        "from execserver.mcp.rules_process import Source, evaluate_all\n"
        f"sys.exit(len(evaluate_all([Source('/a.rules', {GOOD.text!r})]).rules))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_missing_evaluator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "execserver.mcp.rules_language", raising=False)
    monkeypatch.setitem(sys.modules, "starlark", None)
    assert "starlark" in str(refused([GOOD]))


def test_the_child_has_no_descriptor_of_ours_and_no_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(sources: object, answers: BinaryIO) -> None:
        places = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        leads = {os.readlink(place) for place in places if os.path.lexists(place)}
        handlers = {signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        answers.write(f"-{handlers == {signal.SIG_DFL}} {sorted(leads)}".encode())

    monkeypatch.setattr(rules_process, "_answer", look)
    with open(tmp_path / "ours", "wb"):
        told = str(refused([GOOD]))
    assert re.fullmatch(r"True \['/dev/null', 'pipe:\[\d+\]'\]", told)


def test_a_path_that_is_no_text_is_shown() -> None:
    error = refused([Source("/bad\udcff.rules", "foo")])
    assert "--> /bad\ufffd.rules:1:1" in str(error)
