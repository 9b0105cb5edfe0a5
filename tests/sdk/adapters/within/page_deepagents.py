"""What the page says of Deep Agents, run as it stands there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from tests.sdk.adapters.page import run_snippet, snippet

BOX = os.environ["EXECSERVER_TEST_BOX"]


class Scripted(GenericFakeChatModel):
    """A model that says what it was told to, whatever it is asked."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Scripted:
        return self


def test_the_snippet_lets_an_agent_work_on_the_box(tmp_path: Path) -> None:
    place = tmp_path / "project"
    call = {"name": "execute", "args": {"command": "pwd > where"}, "id": "call-1"}
    model = Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("Done.")]))
    asyncio.run(run_snippet(snippet("Deep Agents", BOX, str(place)), model=model))
    assert (place / "where").read_text() == f"{place}\n"
