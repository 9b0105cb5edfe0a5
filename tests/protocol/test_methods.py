from __future__ import annotations

import inspect

import msgspec
import pytest

from execserver.protocol import methods, own_methods
from execserver.protocol.method import Family, Method, NotificationMethod
from execserver.protocol.methods import METHODS, NOTIFICATIONS
from execserver.protocol.record import Record

CONTRACT = {
    *("initialize", "process/start", "process/read", "process/write", "process/signal", "process/terminate"),
    *("environment/info", "fs/readFile", "fs/open", "fs/readBlock", "fs/close", "fs/writeFile"),
    *("fs/createDirectory", "fs/getMetadata", "fs/canonicalize", "fs/readDirectory", "fs/remove", "fs/copy"),
    "http/request",
}
GENERATIONS = {"2026-03", "2026-03 text", "2026-04", "2026-05", "2026-06", "0.169.0", "execserver"}


def test_every_method_of_the_contract_is_there() -> None:
    assert set(METHODS) >= CONTRACT
    assert {"process/output", "process/exited", "process/closed", "http/request/bodyDelta"} <= set(
        NOTIFICATIONS
    )


def test_a_notification_is_no_method() -> None:
    assert not set(METHODS) & set(NOTIFICATIONS)
    assert [name for name, notification in NOTIFICATIONS.items() if notification.to_server] == ["initialized"]


def test_every_declaration_is_in_the_table_under_its_constant() -> None:
    declared = {
        name: value
        for name, value in (vars(methods) | vars(own_methods)).items()
        if isinstance(value, (Method, NotificationMethod))
    }
    table = {**METHODS, **NOTIFICATIONS}
    assert {id(value) for value in declared.values()} == {id(value) for value in table.values()}
    for constant, value in declared.items():
        assert constant.replace("_", "").lower() == value.name.replace("/", "").lower()
        assert repr(value).endswith(f" {value.name}>")


@pytest.mark.parametrize("method", METHODS.values(), ids=str)
def test_every_method_is_fully_described(method: Method[Record, Record]) -> None:
    assert issubclass(method.params, Record)
    assert issubclass(method.result, msgspec.Struct)
    assert isinstance(method.family, Family)
    assert method.since in GENERATIONS
    assert method.extension == (method.since == "execserver")
    assert method.doc.endswith(".")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("process/start", "exec"),
        ("process/resize", "exec"),
        ("command/exec", "exec"),
        ("environment/info", "environment info"),
        ("fs/walk", "filesystem"),
        ("http/request", "http"),
    ],
)
def test_families_have_the_names_of_the_state_errors(name: str, family: str) -> None:
    assert METHODS[name].family.value == family


def test_every_record_says_what_it_is() -> None:
    params = [method.params for method in METHODS.values()]
    params += [notification.params for notification in NOTIFICATIONS.values()]
    assert all(inspect.getdoc(record) for record in params)
