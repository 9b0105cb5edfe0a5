"""The manual pages: made of the help texts, whole, and nothing about them is complained about."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import ptyprocess
import pytest

from execserver.arguments import read_table
from execserver.dispatch import VERBS
from execserver.verbs.help import GENERAL, TEXTS, text
from execserver.verbs.man_page import manual_page
from tests.support.source import ROOT

MAIN = [sys.executable, "-I", str(ROOT / "execserver" / "__main__.py")]
needs_groff = pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")


def formatted(page: str) -> str:
    """Return a page as a terminal shows it; nothing in it may be complained about."""
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-P-cbou", "-rLL=100n"],
        input=page.encode(),
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == b""
    return done.stdout.decode()


def words(shown: str) -> str:
    """Return text without spaces and hyphenation, which formatting changes."""
    return re.sub(r"[\s\u2010`<>]", "", shown)


@needs_groff
@pytest.mark.parametrize(
    "verb", [None, "box", "completion", "ps", *(pytest.param(verb, marks=pytest.mark.long) for verb in TEXTS)]
)
def test_a_page_has_all_of_its_text_and_no_mistakes(verb: str | None) -> None:
    source = text(GENERAL if verb is None else TEXTS[verb])
    shown = formatted(manual_page(verb, source, "1.2"))
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"):
        assert f"\n{section}\n" in shown
    for option in read_table(source):
        assert option in shown
    found = words(shown)
    for line in source.splitlines():
        for part in re.split(r"  +", line.removeprefix("Usage: ").removeprefix("Exit status: ").strip()):
            assert words(part).removesuffix(":").lower() in found.lower(), part
    assert ("\nEXIT STATUS\n" in shown) == ("\nExit status: " in source)


def test_what_would_be_a_macro_or_an_escape_is_text() -> None:
    source = "Sum.\n\nUsage: x\n\n.so /etc/passwd\n\n'bp \\n(yr `a\\b`\n\nOptions:\n  -x, --xx <A>   .br\n"
    page = manual_page("x", source, "1")
    assert "\n\\&.so /etc/passwd\n" in page
    assert "\n\\(aqbp \\(rsn(yr \\fBa\\(rsb\\fR\n" in page
    assert "\n\\fB\\-x\\fR, \\fB\\-\\-xx\\fR \\fIA\\fR\n\\&.br\n" in page


def test_help_prints_roff_where_nobody_looks() -> None:
    done = subprocess.run([*MAIN, "help", "--man", "run"], capture_output=True, timeout=30, check=True)
    assert done.stdout.startswith(b'.TH EXECSERVER-RUN 1 "" "execserver ')
    assert done.stderr == b""
    done = subprocess.run([*MAIN, "help", "--man", "doctor"], capture_output=True, timeout=30, check=True)
    assert done.stdout.startswith(b".TH EXECSERVER 1 ")
    assert set(TEXTS) <= set(VERBS)


@pytest.mark.parametrize("given", [["--man", "a", "b"], ["--woman"]])
def test_wrong_usage_exits_with_2(given: list[str]) -> None:
    done = subprocess.run([*MAIN, "help", *given], capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("has_man", [True, False])
def test_at_a_terminal_man_shows_it_or_the_text_is_printed(tmp_path: object, has_man: bool) -> None:
    if has_man:
        with open(f"{tmp_path}/man", "w") as file:
            file.write('#!/bin/sh\n[ "$*" = "-l -" ] && /usr/bin/head -c 19 | /usr/bin/tr a-z A-Z\n')
        os.chmod(f"{tmp_path}/man", 0o755)
    process = ptyprocess.PtyProcess.spawn([*MAIN, "help", "--man", "run"], env={"PATH": str(tmp_path)})
    shown = b""
    try:
        while True:
            shown += process.read(65536)
    except EOFError:
        pass
    process.close(force=True)
    assert shown.startswith(b".TH EXECSERVER-RUN" if has_man else b"Run a command on a box")
