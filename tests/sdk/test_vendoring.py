"""Imports of shared modules are led to the copies that a wheel carries; nothing else in a source changes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.source import ROOT
from tools.problems import Problem
from tools.sdk.closure import Source, closure, sources
from tools.sdk.vendoring import PACKAGES, carried, rewritten

BEFORE = '''"""Of execserver: `from execserver.client import x`."""
from execserver.client.errors import (  # execserver
    ExecServerError,
)
import execserver.wire.lines as lines, os
if "é" and True: from  execserver.version import __version__; execserver = "import execserver"
def late():
    from execserver import version
    import execserver_other, execserver.protocol.paths as paths
'''
AFTER = '''"""Of execserver: `from execserver.client import x`."""
from execserver_client._shared.client.errors import (  # execserver
    ExecServerError,
)
import execserver_client._shared.wire.lines as lines, os
if "é" and True: from  execserver_client._shared.version import __version__; execserver = "import execserver"
def late():
    from execserver_client._shared import version
    import execserver_other, execserver_client._shared.protocol.paths as paths
'''


def source(folder: Path, text: str) -> Source:
    path = folder / "module.py"
    path.write_text(text)
    return Source("module", path, ast.parse(text))


def test_imports_change_and_nothing_else(tmp_path: Path) -> None:
    assert rewritten(source(tmp_path, BEFORE)).decode() == AFTER


def test_an_import_that_binds_the_top_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        rewritten(source(tmp_path, "import os, execserver.wire.lines\n"))
    assert "imports execserver.wire.lines without a name of its own" in caught.value.what


def test_the_copies_are_the_closure_and_lazy_packages_are_empty() -> None:
    starts = [each for package in PACKAGES for each in sources(ROOT, package)]
    reached = closure(ROOT, starts)
    copies = carried(ROOT)
    assert len(copies) == len(reached)
    assert ast.parse(copies["execserver_client/_shared/client/__init__.py"]).body[1:] == []
    assert b"class ExecServerError" in copies["execserver_client/_shared/client/errors.py"]
    for name, text in copies.items():
        ast.parse(text, name)
