"""The blocking twin: written from asyncio code as it is kept, and behaving as its original does."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver_client.sync._portal import Portal
from execserver_client.sync._shapes import Items
from tests.sdk.sample import counting as asynchronous
from tests.sdk.sample.sync.counting import Counter, Kept, Step
from tools.sdk.annotations import Unsupported
from tools.sdk.twin import Plan, generate
from tools.sdk.write_twin import pages

ASYNCIO = re.compile(
    r"\b(?:async|await\w*|tasks?|coroutines?|event\s+loop|asyncio|asynchronous|aclose)\b", re.I
)
HERE = Path(__file__).parent / "sample"
CLASSES = ("Counter", "Step", "Steps", "Kept")
PLAN = Plan("tests.sdk.sample", "counting", CLASSES, dict.fromkeys(CLASSES, "counting"), ("Counter",))


@pytest.fixture
def counter() -> Iterator[Counter]:
    with Counter(Portal(), asynchronous.Counter()) as counter:
        yield counter


def test_the_kept_twin_is_up_to_date() -> None:
    stale = [path.name for path, text in pages().items() if not path.is_file() or path.read_text() != text]
    assert stale == [], "python3 build.py docs writes them"


def test_no_docstring_of_the_twin_speaks_of_asyncio() -> None:
    wrong = [
        (path.name, node.name, word)
        for path, text in pages().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        for word in ASYNCIO.findall(ast.get_docstring(node) or "")
    ]
    assert wrong == []


def test_the_twin_of_the_sample_is_what_the_writer_makes() -> None:
    kept = (HERE / "sync" / "counting.py").read_text()
    assert generate((HERE / "counting.py").read_text(), PLAN) == kept


def test_calls_properties_and_attributes_are_those_of_the_original(counter: Counter) -> None:
    assert counter.add(3) == 3
    assert counter.add(direction="down") == counter.value == 2
    assert counter.first.twice() == 2
    assert counter.first.number == 1
    with pytest.raises(asynchronous.Refused, match="-1 is below 0"):
        counter.add(-1)


def test_iterators_give_one_item_after_another(counter: Counter) -> None:
    assert [*counter.up_to(3)] == [0, 1, 2]
    counter.add(2)
    assert [step.number for step in counter.steps()] == [1, 0]
    assert [step.twice() for step in counter.every()] == [0, 2]


def test_an_iterator_that_is_left_early_cleans_up(counter: Counter) -> None:
    with counter.up_to(9) as numbers:
        assert isinstance(numbers, Items)
        assert next(numbers) == 0
    assert counter.cleaned[-1] == "generator"
    assert [*numbers] == []


def test_contexts_are_entered_and_left(counter: Counter) -> None:
    with counter.step(4) as step:
        assert (type(step), step.twice()) == (Step, 8)
        assert counter.cleaned == ["entered"]
    assert counter.cleaned == ["entered", "step"]


def test_what_is_opened_is_open_at_once_and_can_be_entered(counter: Counter) -> None:
    assert counter.kept(4).number == 4
    with counter.kept(4, times=2) as kept:
        assert (type(kept), kept.number) == (Kept, 8)
        assert counter.cleaned == ["entered"]
    assert counter.cleaned == ["entered", "kept"]


def test_twins_are_passed_on_as_their_originals(counter: Counter) -> None:
    found = counter.find(5)
    assert found is not None
    assert counter.find(0) is None
    assert counter.same_as(found) is counter.same_as(found, found) is True


def test_a_callers_iterator_may_block(counter: Counter) -> None:
    threads = set()

    def numbers() -> Iterator[int]:
        for number in (1, 2, 3):
            threads.add(threading.current_thread().name)
            yield number

    assert counter.add_all(numbers()) == 6
    assert counter.add_all([4]) == 10
    assert {"MainThread", "execserver-client"} & threads == set()


def test_callbacks_are_called(counter: Counter) -> None:
    told: list[int] = []
    seen = threading.Event()
    counter.add(5)

    def listening(value: int) -> None:
        told.append(value)
        seen.set()

    counter.on_change(listening)
    assert seen.wait(20)
    assert told == [5]


def test_what_has_no_blocking_form_is_refused() -> None:
    source = "class Counter:\n    async def steps(self) -> dict[str, Step]:\n        ...\n"
    with pytest.raises(Unsupported, match=r"dict\[str, Step\]"):
        generate(source, PLAN._replace(classes=("Counter",)))
