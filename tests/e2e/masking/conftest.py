"""What the tests of one module share: a server with credentials, and their provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.masking_server import (
    KEY,
    TOKEN,
    VENDOR,
    Provider,
)
from tests.support.server_process import ServerProcess, base_environment
from tests.support.ws_peer import WsPeer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("masking", numbered=True)


@pytest.fixture(scope="module")
def provider(folder: Path) -> Iterator[Provider]:
    made = Provider(folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(provider: Provider, folder: Path) -> Iterator[ServerProcess]:
    own = {"OPENAI_API_KEY": KEY, "GITHUB_TOKEN": TOKEN, "VENDOR_KEY": VENDOR}
    own |= {"CODEX_HOME": str(folder / "codex"), "SSL_CERT_FILE": str(provider.trusted)}
    with ServerProcess(env=base_environment() | own) as running:
        yield running
        assert not any(secret in running.errors() for secret in (KEY, TOKEN, VENDOR))


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[WsPeer]:
    connection = server.connect()
    connection.open_session()
    yield connection
    connection.close()
