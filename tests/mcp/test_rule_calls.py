"""Rules as a rules file spells them; what calls mean is tested with the language."""

from __future__ import annotations

from execserver.mcp.rule_calls import shown
from execserver.rules.policy import ALLOW, Rule


def test_a_rule_is_shown_as_a_file_spells_it() -> None:
    rule = Rule((("a", "b"), ("it's",), ('"\\\t\r\n',)), ALLOW, "/r:1")
    assert shown(rule) == r"""prefix_rule([["a", "b"], "it's", "\"\\\t\r\n"])"""
