"""How the snippets of `sdk/adapters.md` are found and run, and that none of them is forgotten."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.sdk.adapters.page import PAGE, run_snippet, snippet
from tests.support.source import ROOT

TESTED = ("OpenAI Agents SDK", "Deep Agents", "Anthropic", "Inspect", "Harbor", "mini-SWE-agent")


def test_every_snippet_of_the_page_is_run_by_a_test() -> None:
    assert len(re.findall(r"^```py$", PAGE.read_text(), re.MULTILINE)) == len(TESTED)
    within = "\n".join(path.read_text() for path in (ROOT / "tests/sdk/adapters/within").glob("*.py"))
    for heading in TESTED:
        assert f'snippet("{heading}"' in within


@pytest.mark.parametrize("heading", [heading for heading in TESTED if heading != "Inspect"])
def test_a_snippet_is_for_the_box_and_the_folder_it_is_asked_for(heading: str) -> None:
    code = snippet(heading, "ws://127.0.0.1:1", "/some/where")
    assert "'ws://127.0.0.1:1'" in code
    assert "'/some/where'" in code
    assert '"dev"' not in code
    assert "/src/project" not in code


def test_a_heading_without_a_snippet_is_an_error() -> None:
    with pytest.raises(LookupError, match="Several"):
        snippet("Several in one environment", "dev", "/src")


def test_a_snippet_may_await_and_uses_what_it_is_given() -> None:
    async def doubled(value: int) -> int:
        return 2 * value

    assert asyncio.run(run_snippet("found = await doubled(given)", doubled=doubled, given=21))["found"] == 42
    assert asyncio.run(run_snippet("found = given", given=1))["found"] == 1
