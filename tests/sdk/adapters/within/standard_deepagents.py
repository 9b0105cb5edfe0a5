"""The standard tests of sandbox backends that LangChain ships, on a box."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from execserver_adapters.deepagents import ExecserverSandbox

PLACE = os.environ["EXECSERVER_TEST_PLACE"] + "/standard"


class TestStandard(SandboxIntegrationTests):
    """All of them, in a sandbox that writes to one folder only."""

    @property
    def sandbox_root_dir(self) -> str:
        """The only folder that may be written to, besides the temporary ones."""
        return PLACE

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[ExecserverSandbox]:
        """The backend."""
        with ExecserverSandbox(os.environ["EXECSERVER_TEST_BOX"], workdir=PLACE) as backend:
            yield backend
