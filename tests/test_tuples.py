"""Our named tuples, which exist so that `typing` is loaded late, against those of `typing`."""

from __future__ import annotations

import copy
import pickle
from typing import Any
from typing import NamedTuple as TypingTuple

import pytest

from execserver import tuples


class Ours(tuples.NamedTuple):
    """Members without and with a default, and a property."""

    host: str
    port: int = 80
    secure: bool = False

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}"


class Theirs(TypingTuple):
    """The same."""

    host: str
    port: int = 80
    secure: bool = False

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}"


WAYS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}),
    (("a", 1), {}),
    (("a", 1, True), {}),
    (("a",), {"secure": True}),
    ((), {"secure": True, "host": "a"}),
]


@pytest.mark.parametrize(("given", "named"), WAYS)
def test_one_is_what_typing_makes(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, theirs = Ours(*given, **named), Theirs(*given, **named)
    assert tuple(ours) == tuple(theirs)
    assert hash(ours) == hash(theirs)
    assert (ours.host, ours.port, ours.secure, ours.shown) == (
        theirs.host,
        theirs.port,
        theirs.secure,
        theirs.shown,
    )
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert tuple(ours._replace(port=7)) == tuple(theirs._replace(port=7))
    assert type(ours._replace(port=7)) is Ours
    assert (Ours._fields, Ours._field_defaults) == (Theirs._fields, Theirs._field_defaults)


def test_a_copy_is_the_same() -> None:
    one = Ours("a", 1)
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert (type(other), other) == (Ours, one)


WRONG: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (("a", 1, True, 4), {}),
    (("a",), {"host": "b"}),
    (("a",), {"other": 1}),
]


@pytest.mark.parametrize(("given", "named"), WRONG)
@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_members_that_do_not_fit_are_refused(
    kind: type[Any], given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        kind(*given, **named)


@pytest.mark.parametrize("one", [Ours("a"), Theirs("a")])
def test_a_member_cannot_be_set_and_none_but_these_replaced(one: Any) -> None:
    with pytest.raises(AttributeError):
        one.port = 1
    with pytest.raises((TypeError, ValueError)):
        one._replace(other=1)
