from __future__ import annotations

import re
from enum import Enum

import msgspec
import pytest

import execserver.protocol as protocol
from execserver.protocol.methods import METHODS, NOTIFICATIONS, SERVER_REQUESTS
from execserver.protocol.record import U64, Base64, Record
from tools.protocol_page import PAGE, PROSE, render, type_name

SECTIONS = range(1, 24)


class Colour(Enum):
    """An enum for the test."""

    RED = "red"
    BLUE = "blue"


def named(kind: str) -> list[str]:
    return re.findall(rf"^@{kind} (\S+)$", PROSE.read_text(), re.MULTILINE)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(PROSE.read_text()), "`python3 build.py docs` writes it"


def test_every_method_and_notification_has_one_place() -> None:
    assert sorted(named("method")) == sorted(METHODS)
    assert sorted(named("notification")) == sorted(NOTIFICATIONS)
    assert sorted(named("question")) == sorted(SERVER_REQUESTS)


def test_every_record_a_table_names_is_on_the_page() -> None:
    told = {getattr(protocol, name) for name in named("record")}
    told |= {record for method in METHODS.values() for record in (method.params, method.result)}
    told |= {notification.params for notification in NOTIFICATIONS.values()}
    told |= {record for request in SERVER_REQUESTS.values() for record in (request.params, request.result)}
    inside = {
        inner for record in told for field in msgspec.structs.fields(record) for inner in _records(field.type)
    }
    assert inside <= told


def _records(wanted: object) -> set[type[msgspec.Struct]]:
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return {wanted}
    return {record for part in getattr(wanted, "__args__", ()) for record in _records(part)}


def test_the_sections_the_code_refers_to_are_there() -> None:
    headings = re.findall(r"^## (\d+)\. ", PROSE.read_text(), re.MULTILINE)
    assert headings == [str(number) for number in SECTIONS]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (str | None, "string or null"),
        (U64 | None, "u64 or null"),
        (tuple[Base64, ...], "[base64]"),
        (dict[str, str], "{string: string}"),
        (Colour, "`red`, `blue`"),
        (str | None | msgspec.UnsetType, "string or null"),
        (Record, "Record"),
    ],
)
def test_types_have_short_names(wanted: object, name: str) -> None:
    assert type_name(wanted) == name


def test_a_name_that_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        render("@method no/such")
