"""The service unit and the Dockerfile of docs/operations.md are right."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from execserver import cli
from execserver.dispatch import NAMES, VERBS
from execserver.listen_url import WsListen, parse_listen_url
from tests.support.programs import write_script
from tests.support.source import ROOT
from tools.debian import ARCHITECTURES
from tools.freeze.packages import MACHINES

PAGE = (ROOT / "docs" / "operations.md").read_text()
PROBE = "[Service]\nExecStart=/bin/sh\n"


def block(language: str) -> str:
    """Return the one code block of a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(block("ini"))
    return parser


def verify(path: Path) -> str:
    """Return what `systemd-analyze verify` finds wrong with a unit."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze on this machine")
    done = subprocess.run(
        [program, "verify", "--man=no", path], capture_output=True, text=True, timeout=50, check=False
    )
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit status {done.returncode}")


def test_the_unit_of_the_page_is_the_one_that_is_shipped() -> None:
    assert (ROOT / "deploy" / "systemd" / "execserver.service").read_text() == block("ini")


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    (tmp_path / "probe.service").write_text(PROBE)
    trouble = verify(tmp_path / "probe.service")
    if trouble:
        pytest.skip(f"systemd-analyze does not work here: {trouble}")
    program = write_script(tmp_path / "execserver", "exit 0")
    quoted = str(program).replace(" ", "\\x20")  # where a unit's command line would be split
    text = block("ini").replace("/usr/local/bin/execserver", quoted)
    assert quoted in text
    (tmp_path / "execserver.service").write_text(text)
    assert verify(tmp_path / "execserver.service") == ""


def test_the_unit_starts_the_server_on_loopback_and_lets_it_end_its_children() -> None:
    service = unit()["Service"]
    program, *arguments = service["ExecStart"].split()
    assert program == "/usr/local/bin/execserver"
    listen = parse_listen_url(cli.parse(arguments).listen)
    assert isinstance(listen, WsListen)
    assert listen.host == "127.0.0.1"
    assert service["KillMode"] == "mixed"
    assert service["Environment"] == f"EXECSERVER_CACHE_DIR=/var/cache/{service['CacheDirectory']}"


def test_the_dockerfile_has_three_lines_and_starts_the_server() -> None:
    base, copied, command = block("dockerfile").splitlines()
    assert base.startswith("FROM ")
    assert copied == "COPY dist/execserver /usr/local/bin/execserver"
    program, *arguments = json.loads(command.removeprefix("CMD "))
    assert program == "execserver"
    assert isinstance(parse_listen_url(cli.parse(arguments).listen), WsListen)


def test_every_verb_and_every_name_is_explained() -> None:
    for verb in VERBS:
        assert f"execserver {verb}" in PAGE
        assert verb in (ROOT / "README.md").read_text()
    for name in NAMES:
        assert f"`{name}`" in PAGE


def test_the_image_takes_the_files_that_the_build_makes() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    taken = {file: stage for stage, file in re.findall(r"AS (file-\S+)\nCOPY (\S+) ", text)}
    assert taken == {f"dist/execserver-{machine}": f"file-{ARCHITECTURES[machine]}" for machine in MACHINES}
    assert "FROM file-${TARGETARCH} AS file\n" in text
    (command,) = re.findall(r"^CMD (.*)$", block("dockerfile"), re.MULTILINE)
    assert f"CMD {command}\n" in text
