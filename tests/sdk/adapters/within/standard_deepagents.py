"""The standard tests of sandbox backends that LangChain ships, on a box.

Seven of them contradict the pinned deepagents: they ask for what `BaseSandbox`, whose `write` and `glob`
every backend inherits, says itself that it does not do.  They are played, too, and must fail.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from execserver_adapters.deepagents import ExecserverSandbox

PLACE = os.environ["EXECSERVER_TEST_PLACE"] + "/standard"

_ABSOLUTE = "the test wants paths below the searched folder; BaseSandbox.glob returns absolute ones"
CONTRADICTED = {
    "test_write_existing_file_fails": "BaseSandbox.write overwrites a file that is there",
    "test_glob_with_directories": "BaseSandbox.glob returns regular files only, never folders",
    "test_glob": _ABSOLUTE,
    "test_glob_basic_pattern": _ABSOLUTE,
    "test_glob_hidden_files_explicitly": _ABSOLUTE,
    "test_glob_with_character_class": _ABSOLUTE,
    "test_glob_with_question_mark": _ABSOLUTE,
}


class TestStandard(SandboxIntegrationTests):
    """All of them, in a sandbox that writes to one folder and the temporary ones."""

    @property
    def sandbox_root_dir(self) -> str:
        """Where the tests make their files."""
        return PLACE

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[ExecserverSandbox]:
        """The backend; the commands of two tests ask for a `python`, which not every machine has."""
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        box = os.environ["EXECSERVER_TEST_BOX"]
        with ExecserverSandbox(box, workdir=PLACE, env={"PATH": path}) as backend:
            yield backend

    @pytest.fixture(autouse=True)
    def contradicted(self, request: pytest.FixtureRequest) -> None:
        """Expect what the framework says of itself."""
        reason = CONTRADICTED.get(request.node.name)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(raises=AssertionError, strict=True, reason=reason))
