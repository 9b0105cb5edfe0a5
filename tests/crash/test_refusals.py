"""What --survive-crash does not go with is refused, with the reason, at the start or when it is asked for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crashes import surviving
from tests.support.peer import Json, Peer, RemoteError
from tests.support.proxy_settings import proxy_settings
from tests.support.running import start
from tests.support.server_process import OURS, base_environment

PROXY = {"proxy": proxy_settings("127.0.0.1"), "environmentId": "e", "executionId": "x"}


def begun(*words: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    command = [*OURS.argv, "--survive-crash", *words]
    if shell:
        command = ["sh", "-c", f'{shell}; exec "$@"', "sh", *command]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, env=base_environment()
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--upgrade-on-hup",),
        ("--limit-process", "memory=512M"),
        ("--limit-session", "processes=20"),
        ("--network-rules", "rules.toml"),
        ("--spool-max", "1G"),
        ("--remote", "https://relay.example", "--environment-id", "e"),
    ],
)
def test_options_that_ask_for_more_than_survives(words: tuple[str, ...]) -> None:
    done = begun(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: --survive-crash does not go with {words[0]}: ")


@pytest.mark.parametrize("listen", ["stdio", "wss://127.0.0.1:0"])
def test_other_listeners(listen: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = str(tmp_path / "file")
    words = ("--tls-cert", file, "--tls-key", file) if listen.startswith("wss") else ()
    done = begun("--listen", listen, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--survive-crash needs a server that listens on ws:// or unix://" in done.stderr


def test_files_that_may_not_grow() -> None:
    done = begun("--listen", "ws://127.0.0.1:0", shell="ulimit -f 1000")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "Error: --survive-crash: files are limited to 512000 bytes (ulimit -f), memory files too\n"
    )


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    audit = str(tmp_path_factory.mktemp("audit") / "log")
    with surviving("--audit", audit) as server, server.connect() as connection:
        connection.open_session()
        yield connection


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"limits": {"processes": 20}}, "limits do"),
        ({"record": "output"}, "a recording does"),
        ({"networkProxy": PROXY}, "a network proxy does"),
    ],
)
def test_processes_that_ask_for_more_than_survives(peer: Peer, members: Json, what: str) -> None:
    with pytest.raises(RemoteError, match=f"{what} not survive a crash, so --survive-crash has none"):
        start(peer, "p", "true", **members)
    assert peer.call("process/list", {})["processes"] == []


def test_what_is_not_there_is_not_announced() -> None:
    with surviving() as server, server.connect() as connection:
        info = connection.call("initialize", {"clientName": "test"})["environmentInfo"]
    own, others = info["execserver"], info["capabilities"]
    assert (own["processLimits"], own["processRecording"], own["outputSpoolBytes"]) == (False, False, 0)
    assert (others["networkProxyLaunch"], others["credentialMasking"]) == (False, False)
