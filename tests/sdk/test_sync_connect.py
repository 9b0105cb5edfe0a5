"""`connect` of the blocking twin: as that of asyncio, and its public names are the same."""

from __future__ import annotations

import inspect

import pytest

import execserver_client
from execserver_client import sync
from execserver_client.sync.connecting import connect
from tests.sdk.test_portal import living


def test_a_box_is_opened_by_its_url_and_closed(url: str) -> None:
    with connect(url) as box:
        assert box.run(["echo", "there"]).text == "there\n"
    assert living() == []


def test_a_box_that_is_nowhere_leaves_no_thread() -> None:
    with pytest.raises(execserver_client.ConnectFailed):
        connect("ws://127.0.0.1:1")
    assert living() == []


def test_it_takes_what_asyncios_takes() -> None:
    ours, theirs = inspect.signature(sync.connect), inspect.signature(execserver_client.connect)
    assert list(ours.parameters.values()) == list(theirs.parameters.values())


def test_the_public_names_are_those_of_asyncio() -> None:
    assert set(sync.__all__) - {"ClientClosed", "ForkedClient"} == set(execserver_client.__all__)
    assert {name for name in sync.__all__ if not hasattr(sync, name)} == set()
