"""`codex-linux-sandbox --network-rules`: what the command reaches through the proxy that is made for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.sandbox_box import Box
from tests.support.proc import marked
from tests.support.small_web import Web, small_web

FETCH = (
    "exec 3<>/dev/tcp/127.0.0.1/${http_proxy##*:};"
    ' printf "GET $1 HTTP/1.1\\r\\nHost: $2\\r\\n\\r\\n" >&3; head -n 1 <&3'
)


@pytest.fixture
def web() -> Iterator[Web]:
    with small_web() as web:
        yield web


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def ruled(box: Box, text: str) -> tuple[str, str]:
    path = box.folder / "rules.toml"
    path.write_text(text)
    path.chmod(0o600)
    return "--network-rules", str(path)


def fetch(box: Box, options: tuple[str, ...], host: str, **env: str) -> tuple[int, str, str]:
    words = ("--", "/bin/bash", "-c", FETCH, "bash", f"http://{host}/", host)
    return box.run(*options, *words, **env)


def test_the_command_reaches_what_is_allowed_and_is_told_of_the_rest(box: Box, web: Web) -> None:
    options = ruled(box, f'allow = ["http://127.0.0.1:{web.port}"]')
    mark = {"EXECSERVER_TEST_MARK": str(box.folder)}
    status, stdout, stderr = fetch(box, options, f"127.0.0.1:{web.port}", **mark)
    assert (status, stdout, stderr) == (0, "HTTP/1.1 200 Here\r\n", "")
    status, stdout, stderr = fetch(box, options, "other.example", **mark)
    assert (status, stdout) == (0, "HTTP/1.1 403 Forbidden\r\n")
    assert stderr == (
        "[network] other.example:80 was refused (not_allowed); "
        'to let it through: allow = ["http://other.example"]\n'
    )
    assert marked(f"EXECSERVER_TEST_MARK={box.folder}") == []


def test_past_the_proxy_there_is_nothing(box: Box, web: Web) -> None:
    options = ruled(box, f'allow = ["http://127.0.0.1:{web.port}"]')
    _, stdout, stderr = box.run(
        *options, "--", "/bin/bash", "-c", f"(: < /dev/tcp/127.0.0.1/{web.port}) || echo $?"
    )
    assert (stdout, "Connection refused" in stderr) == ("1\n", True)


def test_nothing_of_the_commands_environment_acts_on_the_proxy(box: Box, web: Web) -> None:
    (box.ws / "gevent.py").write_text(f"open({str(box.folder / 'ran')!r}, 'w')")
    options = ruled(box, f'allow = ["http://127.0.0.1:{web.port}"]')
    env = {"PYTHONPATH": str(box.ws), "LD_LIBRARY_PATH": str(box.ws), "HTTP_PROXY": "http://192.0.2.1:1"}
    assert fetch(box, options, f"127.0.0.1:{web.port}", **env)[1] == "HTTP/1.1 200 Here\r\n"
    assert not (box.folder / "ran").exists()


@pytest.mark.parametrize(("text", "told"), [("allow = 1", "rules.toml:1: allow is no list"), ("\0", ":1: ")])
def test_with_a_bad_file_nothing_runs(box: Box, text: str, told: str) -> None:
    status, stdout, stderr = box.run(*ruled(box, text), "--", "/bin/echo", "ran")
    assert (status, stdout) == (1, "")
    assert told in stderr
    assert "What to do: " in stderr


@pytest.mark.parametrize("other", ["--allow-network-for-proxy", "--use-legacy-landlock"])
def test_other_networks_are_another_matter(box: Box, other: str) -> None:
    status, _, stderr = box.run(*ruled(box, ""), other, "--", "/bin/true")
    assert (status, "--network-rules is incompatible" in stderr) == (101, True)
