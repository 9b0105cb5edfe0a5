"""Which parts of a configuration file are told, and which projects are trusted."""

from __future__ import annotations

from typing import Any

import pytest

from execserver.core.config_layers import is_trusted, of_project, root_markers, selected

TABLE: dict[str, Any] = {"model": "m", "b": {"c": {"x": 1, "y": 2}, "d": {}}, "l": [{"x": 1}]}


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ([("model",), ("b", "c", "y")], {"model": "m", "b": {"c": {"y": 2}}}),
        ([("b", "c", "y"), ("b", "c", "x")], {"b": {"c": {"x": 1, "y": 2}}}),
        ([("b", "c"), ("b", "c", "x")], {"b": {"c": {"x": 1, "y": 2}}}),
        ([("b", "d"), ("b", "e")], {"b": {"d": {}}}),
        ([("b", "c", "x", "deeper")], {"b": {"c": {"x": 1}}}),
        ([("l", "0")], {"l": [{"x": 1}]}),
        ([("nope",), ("b", "e"), ("b", "d", "e")], {}),
    ],
)
def test_the_wanted_parts_keep_their_places(paths: list[tuple[str, ...]], found: dict[str, Any]) -> None:
    assert selected(TABLE, paths) == found


def test_a_project_does_not_decide_where_requests_go() -> None:
    table: dict[str, Any] = {"model": "m", "notify": ["x"], "openai_base_url": "y", "mcp_servers": {}}
    assert list(of_project(table)) == ["model", "mcp_servers"]


def test_markers_are_those_of_the_first_file_that_names_any() -> None:
    assert root_markers({}, {}) == (".git",)
    assert root_markers({}, {"project_root_markers": ["x"]}) == ("x",)
    assert root_markers({"project_root_markers": []}, {"project_root_markers": ["x"]}) == ()
    assert root_markers({"project_root_markers": ["a/b", 1, "ok"]}) == ("ok",)


def test_the_first_folder_that_the_user_named_decides() -> None:
    user: dict[str, Any] = {
        "projects": {"/a": {"trust_level": "trusted"}, "/a/b": {"trust_level": "untrusted"}, "/c": 1}
    }
    assert is_trusted(user, [b"/a"])
    assert is_trusted(user, [b"/a/c", b"/a"])
    assert not is_trusted(user, [b"/a/b", b"/a"])
    assert not is_trusted(user, [b"/c", b"/d"])
    assert not is_trusted({"projects": 5}, [b"/a"])
