"""What the texts of skills say, as the newest reference server reads them."""

from __future__ import annotations

import pytest

from execserver.protocol.skill_text import (
    MAX_TEXT_BYTES,
    Unreadable,
    head_of,
    read_head,
    read_metadata,
)


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: a\n---\nbody\n",
        "---\nname: a\n---",
        "---\r\nname: a\r\n---\r\nbody",
        "--- \nname: a\n--- \n",
        "---\nname: a\n  ---\nx\n---\n",
    ],
)
def test_a_head_ends_with_its_second_line_of_dashes(text: str) -> None:
    assert head_of(text) == "name: a"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no head",
        "\n---\nname: a\n---\n",
        "\ufeff---\nname: a\n---\n",
        "----\nname: a\n---\n",
        "---\nname: a\n...\n",
        "---\nname: a\n",
        "---\n" + "#\n" * MAX_TEXT_BYTES + "---\n",
    ],
)
def test_a_text_without_a_head_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        head_of(text)


@pytest.mark.parametrize(
    ("description", "read"),
    [
        ('"quoted: x"', "quoted: x"),
        (">\n  folded\n  text", "folded text"),
        ("|\n  lit\n  text", "lit text"),
        ("multi\n  line", "multi line"),
        ("plain: colon", "plain: colon"),
        ("it's: so", "it's: so"),
        ("@x", "@x"),
        ("`x`", "`x`"),
        ("7", "7"),
        ("true", "true"),
        ("2020-01-01", "2020-01-01"),
        ("d # comment", "d"),
        ("<b>", "<b>"),
        ("!!str d", "d"),
        ('"d\\u00e9 \\x41"', "dé A"),
        ("d" * 1025, "d" * 1025),
    ],
)
def test_a_description_is_its_text_on_one_line(description: str, read: str) -> None:
    assert read_head(f"name: a\ndescription: {description}") == ("a", read, None)


@pytest.mark.parametrize(
    "head",
    [
        "",
        "- a",
        "name: [",
        "name: a",
        "name: a\ndescription:",
        "name: a\ndescription: null",
        "name: a\ndescription: ~",
        'name: a\ndescription: ""',
        "name: a\ndescription: [x]",
        "name: a\ndescription: %x",
        "name: a\ndescription: - x",
        "name: a\ndescription: d\nname: b",
        "name: a\ndescription: d\nmetadata: x",
        "\tname: a\ndescription: d",
        f"name: {'n' * 65}\ndescription: d",
        "name: !!python/object/apply:os.system [x]\ndescription: d",
        "name: a\ndescription: d\n---\nname: b",
        "x: " + "[" * 5_000,
        "name: &a\n  x: *a\ndescription: d",
        'name: a\ndescription: "\\ud800"',
        'name: a\ndescription: "\\UFFFFFFFF"',
    ],
)
def test_a_head_without_a_description_or_of_another_form_is_refused(head: str) -> None:
    with pytest.raises(Unreadable):
        read_head(head)


def test_a_name_may_be_missing_and_more_may_be_there() -> None:
    assert read_head("description: d\nname: null") == (None, "d", None)
    assert read_head('name: ""\ndescription: d')[0] is None
    assert read_head("name: 5\ndescription: d\nallowed-tools: [a, b]\nother: &x 1\nagain: *x")[0] == "5"
    head = read_head("name: a\ndescription: d\nmetadata:\n  short-description: s  t\n")
    assert head[2] == "s t"


def test_aliases_that_multiply_cost_nothing() -> None:
    lines = ["description: d", "a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    assert read_head("\n".join(lines))[1] == "d"


def test_metadata_has_tools_and_policy() -> None:
    dependencies, policy = read_metadata(
        "interface:\n  display_name: x\n"
        "dependencies:\n  tools:\n  - type: mcp\n    value: v\n    oauth_callback_port: 80\n"
        "policy:\n  allow_implicit_invocation: false\n  products: [codex]\n"
    )
    unsaid = dict.fromkeys(("description", "transport", "command", "url"))
    assert dependencies == {"tools": [{"type": "mcp", "value": "v", **unsaid, "oauthCallbackPort": 80}]}
    assert policy == {"allowImplicitInvocation": False, "products": ["codex"]}


def test_empty_metadata_says_nothing_but_an_empty_policy_is_one() -> None:
    assert read_metadata("") == (None, None)
    assert read_metadata("policy: null\ndependencies:\n  tools: null\n") == (None, None)
    dependencies, policy = read_metadata("policy: {}\ndependencies: {}\n")
    assert dependencies is None
    assert policy is not None


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "policy:\n  allow_implicit_invocation: 'false'\n",
        "policy:\n  products: [nope]\n",
        "dependencies:\n  tools:\n  - type: mcp\n",
        "dependencies:\n  tools:\n  - type: mcp\n    value: v\n    oauth_callback_port: 65536\n",
        "#" * (MAX_TEXT_BYTES + 1),
    ],
)
def test_metadata_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        read_metadata(text)
