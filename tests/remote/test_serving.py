"""Remote mode as the server runs it: what is fatal is held, whatever it was."""

from __future__ import annotations

import gevent
import gevent.event
import pytest

from execserver.handlers.context import Call
from execserver.remote.beginning import Beginning
from execserver.remote.config import RemoteEnvironmentConfig
from execserver.remote.errors import RemoteError
from execserver.remote.executor import RemoteExecutor
from execserver.remote.outbox import StreamOutbox
from execserver.remote.serving import RemoteServing
from execserver.remote.tools import Tools
from execserver.settings import Settings


def no_call(outbox: StreamOutbox) -> Call:
    raise AssertionError("nobody comes")


def make() -> RemoteServing:
    config = RemoteEnvironmentConfig("http://x", "e")
    beginning = Beginning(config, Tools({}), gevent.event.Event(), None, None)
    return RemoteServing(beginning, Settings(), no_call)


def run(monkeypatch: pytest.MonkeyPatch, outcome: BaseException | None) -> RemoteError | None:
    """Run an executor that ends this way, or is killed; return what is held as fatal."""

    def executor_run(self: object) -> None:
        if outcome is not None:
            raise outcome
        gevent.sleep(3600)

    monkeypatch.setattr(RemoteExecutor, "run", executor_run)
    made, ended = make(), gevent.event.Event()
    worker = gevent.spawn(made.run, ended.set)
    gevent.sleep(0)
    worker.kill()
    assert ended.is_set()
    return made.failure


def test_a_signal_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, None) is None


def test_what_is_fatal_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RemoteError("enough")
    assert run(monkeypatch, error) is error


def test_a_mistake_of_our_own_does_not_look_like_success(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = run(monkeypatch, KeyError("a mistake"))
    assert found is not None
    assert found.report == "remote mode ended by a mistake of this program"
    assert "KeyError: 'a mistake'" in capfd.readouterr().err


def test_closing_before_anything_was_done_is_fine() -> None:
    make().close()
