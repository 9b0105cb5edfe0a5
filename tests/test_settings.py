"""The limits: their defaults, how tests change them, and that their page tells the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from execserver.settings import Count, Seconds, SettingError, Settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operations.md"


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = Settings()
    assert settings.detached_session_ttl_s == 30.0
    assert settings.closed_process_retention_s == 30.0
    assert settings.ping_interval_s == 30.0
    assert settings.retained_output_bytes == 1_048_576
    assert settings.max_frame_bytes == 16_777_216
    assert settings.max_message_bytes == 67_108_864


def test_an_override_changes_one_setting() -> None:
    settings = Settings(ping_interval_s=1, max_fragments=2)
    assert (settings.ping_interval_s, settings.max_fragments) == (1.0, 2)
    assert settings.upgrade_timeout_s == Settings().upgrade_timeout_s


def test_settings_cannot_change_once_made() -> None:
    with pytest.raises(AttributeError, match="read-only: max_fragments"):
        Settings().max_fragments = 1


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"no_such": 1}, "there is no setting no_such"),
        ({"ping_interval_s": -1}, "setting ping_interval_s: expected a number of seconds, got -1"),
        ({"ping_interval_s": float("nan")}, "setting ping_interval_s: expected a number of seconds, got nan"),
        ({"max_fragments": 1.5}, "setting max_fragments: expected a whole number, got 1.5"),
        ({"max_fragments": True}, "setting max_fragments: expected a whole number, got True"),
    ],
)
def test_a_wrong_override_is_refused(overrides: dict[str, float], text: str) -> None:
    with pytest.raises(SettingError) as refused:
        Settings(**overrides)
    assert str(refused.value) == text


def test_a_test_can_override_through_the_environment() -> None:
    assert Settings.from_environment({}).max_fragments == 4096
    assert Settings.from_environment({"EXECSERVER_SETTINGS": '{"max_fragments": 7}'}).max_fragments == 7


@pytest.mark.parametrize("text", ["{", "[1]", '{"max_fragments": "7"}'])
def test_a_broken_override_variable_is_refused(text: str) -> None:
    with pytest.raises(SettingError):
        Settings.from_environment({"EXECSERVER_SETTINGS": text})


def test_every_name_carries_its_unit() -> None:
    for name, kind in Settings.table():
        if isinstance(kind, Seconds):
            assert name.endswith("_s"), name
        if "bytes" in kind.text.split(",")[0]:
            assert name.endswith("_bytes"), name
        assert kind.text


def test_every_setting_is_read_by_the_server() -> None:
    sources = "".join(path.read_text() for path in (PAGE.parents[1] / "execserver").glob("*/**/*.py"))
    sources += "".join(
        (PAGE.parents[1] / "execserver" / name).read_text()
        for name in ("app.py", "listening.py", "server.py")
    )
    assert [name for name, _ in Settings.table() if f".{name}" not in sources] == []


def test_the_operations_page_lists_every_setting_with_its_default() -> None:
    page = PAGE.read_text()
    for name, kind in Settings.table():
        value = f"{kind.default:,}" if isinstance(kind, Count) else f"{kind.default:g}"
        assert f"| `{name}` | {value} | {kind.text} |" in page
