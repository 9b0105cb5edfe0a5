"""What the page says of OpenAI's Agents SDK, run as it stands there."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import ModelResponse, Usage, set_tracing_disabled
from agents.models.interface import Model
from agents.models.multi_provider import MultiProvider
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from tests.sdk.adapters.page import run_snippet, snippet

BOX = os.environ["EXECSERVER_TEST_BOX"]
set_tracing_disabled(True)


class OneCommand(Model):
    """A model that runs a command once, then says that it is done."""

    def __init__(self) -> None:
        self._asked = False

    async def get_response(self, *rest: Any, **more: Any) -> ModelResponse:
        said: Any = ResponseFunctionToolCall(
            type="function_call",
            name="exec_command",
            arguments=json.dumps({"cmd": "pwd > where"}),
            call_id="c1",
        )
        if self._asked:
            text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
            said = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
        self._asked = True
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *rest: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def test_the_snippet_lets_an_agent_work_on_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "project"
    place.mkdir()
    model = OneCommand()
    monkeypatch.setattr(MultiProvider, "get_model", lambda provider, name: model)
    names = asyncio.run(run_snippet(snippet("OpenAI Agents SDK", BOX, str(place))))
    assert names["result"].final_output == "Done."
    assert (place / "where").read_text() == f"{place}\n"
