"""What SKILL.md and agents/openai.yaml say, read with PyYAML's parser and never constructed.

Only nodes are looked at: no tag makes an object, and an alias stays one node however often it is used.  Every
value counts as its text.  PyYAML takes some 10 µs for a byte, so texts are short, and the server parses them
in a thread.  Dependencies and policy are returned as members of the wire.  Whoever imports this loads that
parser; in the one file, where the package `yaml` itself is empty, nothing else of PyYAML.
"""

from __future__ import annotations

import re

from yaml.composer import Composer
from yaml.error import YAMLError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    Head = tuple[
        str | None, str, str | None
    ]  # name, None where there is none; description; short description
    Members = dict[str, object]

MAX_TEXT_BYTES = 16 * 1024
MAX_NAME = 64  # characters
_NULL = "tag:yaml.org,2002:null"
_TRUTH = {"true": True, "false": False}
_PRODUCTS = frozenset({"chatgpt", "codex", "atlas"})
_TOOL = ("type", "value", "description", "transport", "command", "url")
_U16_MAX = 2**16 - 1
_HALF = re.compile("[\ud800-\udfff]")
# A value that people write without quotes although it needs some.
_UNQUOTED = re.compile(r"^([A-Za-z_-]+): +(?!['\"|>])((?:[@`].*|.*: .*))$", re.MULTILINE)


class Unreadable(Exception):
    """The text does not say what it should."""


class _Nodes(Reader, Scanner, Parser, Composer, Resolver):
    """The parts of PyYAML's safe loader that lead to nodes."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        for part in (Scanner, Parser, Composer, Resolver):
            part.__init__(self)


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
    if not description or (name is not None and len(name) > MAX_NAME):
        raise Unreadable
    more = _members(members.get("metadata"))
    return name or None, description, _line(more.get("short-description")) or None


def read_metadata(text: str) -> tuple[Members | None, Members | None]:
    """Return the dependencies and the policy that an agents/openai.yaml names.  Raises Unreadable."""
    if len(text) > MAX_TEXT_BYTES:
        raise Unreadable
    members = _members(_parsed(text))
    tools = [_tool(node) for node in _elements(_members(members.get("dependencies")).get("tools"))]
    policy = members.get("policy")
    return {"tools": tools} if tools else None, None if _is_null(policy) else _policy(_members(policy))


def _tool(node: Node) -> Members:
    members = _members(node)
    texts = {name: _line(members.get(name)) for name in _TOOL}
    port = _line(members.get("oauth_callback_port"))
    if not texts["type"] or not texts["value"] or (port is not None and not _is_port(port)):
        raise Unreadable
    return {**texts, "oauthCallbackPort": None if port is None else int(port)}


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= _U16_MAX


def _policy(members: dict[str, Node]) -> Members:
    allowed = members.get("allow_implicit_invocation")
    products = [(_line(each) or "").lower() for each in _elements(members.get("products"))]
    if not _PRODUCTS.issuperset(products):
        raise Unreadable
    return {"allowImplicitInvocation": _truth(allowed), "products": products}


def _truth(node: Node | None) -> bool | None:
    if _is_null(node):
        return None
    if not isinstance(node, ScalarNode) or node.style is not None or node.value not in _TRUTH:
        raise Unreadable
    return _TRUTH[node.value]


def _parsed(text: str) -> Node | None:
    try:
        nodes = _Nodes(text)
        try:
            node: Node | None = nodes.get_single_node()
        finally:
            nodes.dispose()  # else it would refer to itself
    except (YAMLError, RecursionError, ValueError, OverflowError):
        raise Unreadable from None
    return node


def _is_null(node: Node | None) -> bool:
    return node is None or node.tag == _NULL


def _members(node: Node | None) -> dict[str, Node]:
    """Return the members of a mapping, none of a null.  Raises Unreadable for anything else."""
    if node is None or _is_null(node):
        return {}
    if not isinstance(node, MappingNode):
        raise Unreadable
    found: dict[str, Node] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode) or key.value in found:
            raise Unreadable
        found[key.value] = value
    return found


def _elements(node: Node | None) -> list[Node]:
    if node is None or _is_null(node):
        return []
    if not isinstance(node, SequenceNode):
        raise Unreadable
    return list(node.value)


def _line(node: Node | None) -> str | None:
    """Return the text of a value on one line, None for a null.

    Raises Unreadable for a collection, and for a text with half of a surrogate pair, which cannot be sent.
    """
    if node is None or _is_null(node):
        return None
    if not isinstance(node, ScalarNode) or _HALF.search(node.value):
        raise Unreadable
    return " ".join(node.value.split())
