"""What SKILL.md and agents/openai.yaml say, read with PyYAML's parser and never constructed.

Only nodes are looked at: no tag makes an object, and an alias stays one node however often it is used.  Every
value counts as its text.  PyYAML takes some 10 µs for a byte, so texts are short and parsed in a thread.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import yaml

from execserver.protocol.discovery import SkillDependencies, SkillPolicy, SkillTool

MAX_TEXT_BYTES = 16 * 1024
_MAX_NAME = 64
_NULL = "tag:yaml.org,2002:null"
_TRUTH = {"true": True, "false": False}
_PRODUCTS = frozenset({"chatgpt", "codex", "atlas"})
_U16_MAX = 2**16 - 1
# A value that people write without quotes although it needs some.
_UNQUOTED = re.compile(r"^([A-Za-z_-]+): +(?!['\"|>])((?:[@`].*|.*: .*))$", re.MULTILINE)


class Unreadable(Exception):
    """The text does not say what it should."""


class Head(NamedTuple):
    """The beginning of a SKILL.md; `name` is None where it has none."""

    name: str | None
    description: str
    short_description: str | None


def head_of(text: str) -> str:
    """Return what stands between the first line and the next, both `---`.  Raises Unreadable."""
    first, *lines = text[: MAX_TEXT_BYTES + 1].splitlines() or [""]
    if first.rstrip() != "---":
        raise Unreadable
    for number, line in enumerate(lines):
        if line.strip() == "---":
            return "\n".join(lines[:number])
    raise Unreadable


def read_head(head: str) -> Head:
    """Return what the head of a SKILL.md says.  Raises Unreadable."""
    try:
        return _head(head)
    except Unreadable:
        quoted = _UNQUOTED.sub(lambda found: f"{found[1]}: '{found[2].replace(chr(39), chr(39) * 2)}'", head)
        if quoted == head:
            raise
        return _head(quoted)


def _head(head: str) -> Head:
    members = _members(_parsed(head))
    name, description = _line(members.get("name")), _line(members.get("description"))
    if not description or (name is not None and len(name) > _MAX_NAME):
        raise Unreadable
    more = _members(members.get("metadata"))
    return Head(name or None, description, _line(more.get("short-description")) or None)


def read_metadata(text: str) -> tuple[SkillDependencies | None, SkillPolicy | None]:
    """Return what an agents/openai.yaml says.  Raises Unreadable."""
    if len(text) > MAX_TEXT_BYTES:
        raise Unreadable
    members = _members(_parsed(text))
    tools = tuple(map(_tool, _elements(_members(members.get("dependencies")).get("tools"))))
    policy = members.get("policy")
    return (
        SkillDependencies(tools=tools) if tools else None,
        None if _is_null(policy) else _policy(_members(policy)),
    )


def _tool(node: yaml.Node) -> SkillTool:
    members = _members(node)
    kind, value = _line(members.get("type")), _line(members.get("value"))
    port = _line(members.get("oauth_callback_port"))
    if not kind or not value or (port is not None and not _is_port(port)):
        raise Unreadable
    return SkillTool(
        type=kind,
        value=value,
        description=_line(members.get("description")),
        transport=_line(members.get("transport")),
        command=_line(members.get("command")),
        url=_line(members.get("url")),
        oauth_callback_port=None if port is None else int(port),
    )


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= _U16_MAX


def _policy(members: dict[str, yaml.Node]) -> SkillPolicy:
    allowed = members.get("allow_implicit_invocation")
    products = tuple((_line(each) or "").lower() for each in _elements(members.get("products")))
    if not _PRODUCTS.issuperset(products):
        raise Unreadable
    return SkillPolicy(allow_implicit_invocation=_truth(allowed), products=products)


def _truth(node: yaml.Node | None) -> bool | None:
    if _is_null(node):
        return None
    if not isinstance(node, yaml.ScalarNode) or node.style is not None or node.value not in _TRUTH:
        raise Unreadable
    return _TRUTH[node.value]


def _parsed(text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        raise Unreadable from None
    return node


def _is_null(node: yaml.Node | None) -> bool:
    return node is None or node.tag == _NULL


def _members(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Return the members of a mapping, none of a null.  Raises Unreadable for anything else."""
    if node is None or _is_null(node):
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise Unreadable
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value in found:
            raise Unreadable
        found[key.value] = value
    return found


def _elements(node: yaml.Node | None) -> list[yaml.Node]:
    if node is None or _is_null(node):
        return []
    if not isinstance(node, yaml.SequenceNode):
        raise Unreadable
    return list(node.value)


def _line(node: yaml.Node | None) -> str | None:
    """Return the text of a value on one line, None for a null.  Raises Unreadable for a collection."""
    if node is None or _is_null(node):
        return None
    if not isinstance(node, yaml.ScalarNode):
        raise Unreadable
    return " ".join(node.value.split())
