"""The pages tell the truth where a test can know it: links resolve, commands exist, named tests exist."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import build
from execserver import cli, cli_help
from execserver.arguments import read_table
from execserver.core.env_policy import SERVER_CREDENTIALS
from execserver.listen_url import DEFAULT_LISTEN_URL
from execserver.mcp import command_line
from execserver.relay.limits import Limits
from execserver.verbs import aliases, audit, doctor, relay, relay_status, relay_token, token, upgrade
from tests.support.server_process import ServerProcess
from tests.support.source import ROOT
from tests.test_inner_folders import INNER_FOLDERS

FOLDERS = (".", "docs", "bench", "helpers", "launcher", "sdk")
PAGES = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
# A table's row, or nothing but a link.
UNBREAKABLE = re.compile(r"\s*\||\s*\[[^\]]*\]: |[\s*-]*\[[^\]]*\]\(\S*\)$")
COMMAND = re.compile(r"python3 build\.py ([a-z]+)((?: --?[a-z-]+)*)")
TEST_NAME = re.compile(r"`(?:tests/)?([\w/]*test_\w+\.py)::(\w+)`")
LIMIT = re.compile(r"^\| `([a-z_.]+)\.([A-Z_]+)` \| ([\d,]+) \|", re.MULTILINE)
CITED = re.compile(r"\b[Ss]ection(?:s|'s)?[\s#]+([\d.]+(?:(?:,| and| to|, and)[\s#]+(?:and )?\d[\d.]*)*)")
HEADING = re.compile(r"^#+ (\d+(?:\.\d+)?)\.? ", re.MULTILINE)
ITEM = re.compile(r"^(\d+)\. ", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
LINE_CHARACTERS = 120
OUTPUTS = {"build", "dist"}  # made, not kept
OWN_FLAGS = {
    "demo": {"--source"},
    "build": {"--record", "--all", "--target"},
    "test": {"--long", "--reference", "--matrix"},
    "bench": {"--quick", "--only", "--own-rows"},
    "run": {"--help"},
}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = CODE.sub("", page.read_text())
    targets = [target for target in LINK.findall(text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lines_of_prose_are_short(page: Path) -> None:
    prose = FENCED.sub("", page.read_text()).splitlines()
    long = [line for line in prose if len(line) > LINE_CHARACTERS and not UNBREAKABLE.match(line)]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist(page: Path) -> None:
    for verb, flags in COMMAND.findall(page.read_text()):
        assert verb in build.VERBS
        assert set(flags.split()) <= OWN_FLAGS.get(verb, set())


def test_the_first_screen_holds_exactly_three_commands() -> None:
    first_block = re.search(r"```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first_block is not None
    assert first_block[1].splitlines() == [f"python3 build.py {verb}" for verb in ("demo", "run", "test")]
    assert (ROOT / "README.md").read_text()[: first_block.start()].count("\n") < 20


def test_the_readmes_python_example_runs(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    with ServerProcess(cwd=ROOT) as server:
        code = found[1].replace("ws://127.0.0.1:PORT", server.url).replace("/tmp/", f"{tmp_path}/")
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    assert done.stderr == ""
    assert done.stdout.startswith("Linux ")
    assert done.stdout.endswith("b'hello'\n")
    assert (tmp_path / "hello").read_bytes() == b"hello"


def test_every_verb_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for verb in build.VERBS:
        assert f"| `python3 build.py {verb}" in readme


def test_options_of_the_relay_on_its_page_are_in_its_help() -> None:
    known = set(
        read_table(relay.HELP + relay_token.HELP + relay_status.HELP + cli_help.HELP, frozenset(), {})
    )
    page = (ROOT / "docs" / "relay.md").read_text()
    assert set(re.findall(r"`?(--[a-z][a-z-]+)", page)) <= known


def test_the_relays_limits_on_its_page_are_those_of_the_code() -> None:
    limits, page = Limits(), (ROOT / "docs" / "relay.md").read_text()
    rows = {
        f"| {limits.frame_bytes // 1024} KiB |": 1,
        f"| {limits.streams} (`--max-streams`)": 1,
        f"| {limits.harnesses} (`--max-harnesses`)": 1,
        f"| {limits.bytes_per_s // 2**20} MiB (`--rate`)": 1,
        f"| {limits.calls_per_s} a second, {4 * limits.calls_per_s} at once |": 1,
        f"| {limits.grants} of an environment |": 1,
        f"| {limits.connections:,} (`--max-connections`)": 1,
        f"| {limits.invalid_frames}, each is dropped |": 1,
    }
    assert {row: page.count(row) for row in rows} == rows
    for number, unit in ((limits.grant_ttl_s, "s"), (limits.stalled_s, "s"), (limits.resume_grace_s, "s")):
        assert f" {number:g} {unit}" in page
    for option, value in (
        ("--max-streams", limits.streams),
        ("--max-harnesses", limits.harnesses),
        ("--max-connections", limits.connections),
        ("--rate", limits.bytes_per_s // 2**20),
        ("--drain", limits.drain_s),
    ):
        assert re.search(rf"  {option} <.*\[default: {value:g}\]", relay.HELP), option


def test_named_tests_exist() -> None:
    for page in PAGES:
        for file, name in TEST_NAME.findall(page.read_text()):
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{named(page)}: {file}::{name}"


def test_options_named_on_the_pages_are_in_the_help() -> None:
    pages = cli_help.HELP + token.HELP + audit.HELP + relay.HELP + upgrade.HELP
    known = set(read_table(pages, frozenset(), {})) | {
        doctor.JSON_FLAG,
        aliases.CODEX_FLAG,
    }
    for name in ("docs/operations.md", "SECURITY.md"):
        flags = set(re.findall(r"`?(--[a-z][a-z0-9-]+)", (ROOT / name).read_text()))
        assert flags <= known, name


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/compatibility.md"])
def test_the_credentials_that_are_never_inherited_are_named(page: str) -> None:
    text = (ROOT / page).read_text()
    assert [name for name in SERVER_CREDENTIALS if f"`{name.decode()}`" not in text] == []


@pytest.mark.parametrize(("page", "least"), [("operations.md", 15), ("shell-tool.md", 6)])
def test_the_limits_on_a_page_are_those_of_the_code(page: str, least: int) -> None:
    rows = LIMIT.findall((ROOT / "docs" / page).read_text())
    assert len(rows) > least
    for module, name, value in rows:
        assert f"{getattr(import_module(f'execserver.{module}'), name):,}" == value, f"{module}.{name}"


def test_the_options_of_the_shell_tool_are_on_its_page() -> None:
    page = (ROOT / "docs" / "shell-tool.md").read_text()
    assert set(re.findall(r"`?(--[a-z][a-z-]+)", page)) == set(read_table(command_line.HELP, frozenset(), {}))


def sections_of_the_contract() -> set[str]:
    """Return the numbers of the headings of docs/protocol.md, and of the items that stand right below one."""
    found = set()
    for part in re.split(r"^(?=#)", (ROOT / "docs" / "protocol.md").read_text(), flags=re.MULTILINE):
        heading = HEADING.match(part)
        if heading:
            found |= {heading[1], *(f"{heading[1]}.{item}" for item in ITEM.findall(part))}
    return found


@pytest.mark.parametrize(
    "folder", ["execserver", "helpers", "sdk", "tests", "tools", "launcher", "docs", "bench"]
)
def test_cited_sections_are_on_the_page_of_the_contract(folder: str) -> None:
    known, astray = sections_of_the_contract(), []
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix not in (".py", ".c", ".h", ".md", ".toml"):
            continue
        text = path.read_text()
        for cited in CITED.finditer(text):
            # Only this page has numbered sections; an RFC brings its own, and says so right before.
            before = " ".join(text[max(0, cited.start() - 40) : cited.start()].split()).rstrip(",")
            if re.search(r"RFC \d+$", before):
                continue
            numbers = {number.rstrip(".") for number in re.findall(r"\d[\d.]*", cited[1])}
            other = re.search(r"(remote mode|shell tool contract|newest contract)$", before)
            if other or not numbers <= known:
                astray.append(f"{named(path)}: {before} {cited[0]}")
    assert astray == []


def test_the_help_describes_the_default_that_is_used() -> None:
    assert "[default: ws://127.0.0.1:0]" in cli_help.HELP
    assert cli.parse([]).listen == DEFAULT_LISTEN_URL


def test_the_repository_names_nothing_of_its_makers_workplace() -> None:
    words = re.compile("/" + r"work/(?!dir)|\.\./" + "shared|SPEC" + r"\.md|design" + r"\.md")
    found = []
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        if parts[0] in OUTPUTS or any(part.startswith(".") for part in parts):
            continue
        if path.suffix in (".py", ".md", ".toml", ".txt"):
            found += [named(path) for line in path.read_text().splitlines() if words.search(line)]
    assert found == []


@pytest.mark.parametrize("part", INNER_FOLDERS)
def test_the_folders_of_a_large_part_are_in_the_architecture(part: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = re.search(rf"^\| `{part}/` \| what \| modules \|\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None
    told: dict[str, list[str]] = {}
    for row in table[1].splitlines():
        folder, _, modules = row.strip("|").split("|")
        told.setdefault(folder.strip(" `/"), []).extend(re.findall(r"`(\w+)`", modules))
    assert tuple(told) == INNER_FOLDERS[part]
    for folder, modules in told.items():
        there = {path.stem for path in (ROOT / "execserver" / part / folder).glob("*.py")} - {"__init__"}
        assert sorted(modules) in ([], sorted(there)), folder
