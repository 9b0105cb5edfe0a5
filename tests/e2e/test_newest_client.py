"""Whole conversations of the newest client with its own server, played against ours."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.accounts import own_cache
from tests.support.egress_world import World
from tests.support.folders import plain_place
from tests.support.newest import environment_in
from tests.support.newest_client import ClientReplay, RecordedWeb, Recording, conversation
from tests.support.server_process import OURS, ServerProcess, base_environment

# What the client ran: files of the recorder's that no answer tells of.
SIDE = {"ws/side": b"executor\n"}
FILES = {
    **dict.fromkeys(("40-client-default", "41-client-capability-v2", "42-client-shell-snapshot-v2"), SIDE),
    "49-client-copy-file": {"ws/src.txt": b"x" * 1_800_000},
}
NETWORK = ("47-client-network-masking", "48-client-network-approval")
SECRET = "value-of-the-token"


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder whose path is the same in the URIs of the traffic, with four folders above it."""
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        made = Path(folder).resolve() / "a4/a3/a2/a1/root"
        for name in ("executor-home/.codex", "ws"):
            (made / name).mkdir(parents=True)
        yield made


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A network without a way out, in which no name is known, as none was to the recorder."""
    with tempfile.TemporaryDirectory(dir=plain_place(), ignore_cleanup_errors=True) as folder:
        made = World(Path(folder).resolve(), knows_names=False)
        yield made
        made.close()


@pytest.fixture
def web() -> Iterator[RecordedWeb]:
    """The HTTP server that a recording talks to."""
    made = RecordedWeb()
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.close()
    thread.join()


@pytest.mark.parametrize(
    "name",
    [
        "38-client-watchMissing-below-repo",
        "39-client-watchMissing",
        pytest.param("40-client-default", marks=pytest.mark.long),
        "41-client-capability-v2",
        pytest.param("42-client-shell-snapshot-v2", marks=pytest.mark.long),
        "43-client-executor-http-mcp",
        pytest.param("44-client-stdio-mcp", marks=pytest.mark.long),
        pytest.param("45-client-capability-roots", marks=pytest.mark.long),
        "46-client-capability-roots-v1",
        pytest.param("49-client-copy-file", marks=pytest.mark.long),
    ],
)
def test_the_newest_client_is_answered_as_by_its_own_server(name: str, root: Path, web: RecordedWeb) -> None:
    recording = web.recording = Recording(conversation(name, root, web.port), root)
    for file, content in FILES.get(name, {}).items():
        (root / file).write_bytes(content)
    home = root / "executor-home"
    env = base_environment() | environment_in(root) | {"HOME": str(home), "CODEX_HOME": str(home / ".codex")}
    env |= own_cache() | {"SHELL": "/bin/bash", "EXECUTOR_SECRET_TOKEN": SECRET}
    with ServerProcess(OURS, env=env, cwd=root) as server, server.connect() as peer:
        failures = ClientReplay(peer, recording).run()
    assert not failures, "\n".join(failures)
    if name == "43-client-executor-http-mcp":
        assert f"Bearer {SECRET}" in web.authorizations


def plain(output: bytes) -> list[str]:
    """Return the lines of output: of variables their names, of curl's complaint its number."""
    text = re.sub(r"(?m)^(\w+)=.*$|(curl: \(\d+\)).*$", r"\1\2", output.decode())
    return text.splitlines()


@pytest.mark.parametrize("name", NETWORK)
def test_its_network_feature_is_answered_as_by_its_own_server(name: str, root: Path, world: World) -> None:
    lines = conversation(name, root)
    home, run = root / "executor-home", root / "run"
    run.mkdir()  # an ordinary user is root in that network, and may not use root's
    env = {key: value for key, value in base_environment().items() if key != "TMPDIR"}
    env |= environment_in(root) | {"HOME": str(home), "CODEX_HOME": str(home / ".codex")}
    env |= own_cache() | {
        "SHELL": "/bin/bash",
        "XDG_RUNTIME_DIR": str(run),
        "AWS_CA_BUNDLE": "/etc/ssl/certs/all.pem",
    }
    there = replace(OURS, argv=(*world.command, *OURS.argv))
    with ServerProcess(there, listen="stdio", env=env, cwd=root) as server:
        with server.stdio() as peer:
            failures = ClientReplay(peer, Recording(lines, root), plain).run()
        server.close_stdin()
        server.wait()
    assert not failures, "\n".join(failures)
    assert list((home / ".codex").glob("proxy/*")) == []
