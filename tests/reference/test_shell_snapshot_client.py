"""The real client 0.169.0 with its feature `shell_snapshot_v2`, on our server and on its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference.codex_cli import Client
from tests.reference.install import ReferenceMissing
from tests.reference.model_server import say
from tests.reference.scenario import outputs, shell
from tests.support.server_process import OURS, Flavour, ServerProcess, base_environment

RC = "echo rc >> $HOME/count; f() { echo f:$1; }; export FROM_RC=rc; echo noise\n"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["ours", "0.169.0"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """The server under test."""
    return OURS if request.param == "ours" else request.getfixturevalue("newest_reference")


@pytest.fixture
def server(flavour: Flavour, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose home has start-up files of its own."""
    (tmp_path / ".bash_profile").write_text(RC)
    with ServerProcess(flavour, env=base_environment() | {"HOME": str(tmp_path)}, cwd=tmp_path) as running:
        yield running


def test_login_commands_start_with_the_state_and_without_the_files(
    server: ServerProcess, tmp_path: Path
) -> None:
    command = "f x; echo $FROM_RC"
    script = [[shell(command, f"call-{n}", login=True)] for n in range(3)]
    try:
        client = Client("0.169.0", [*script, [say("done")]])
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    with client:
        client.extra_config = "[features]\nshell_snapshot_v2 = true\n"
        client.run(server.url)
        assert [output.text for output in outputs(client).values()] == ["f:x\nrc\n"] * 3
    assert (tmp_path / "count").read_text() == "rc\n"
