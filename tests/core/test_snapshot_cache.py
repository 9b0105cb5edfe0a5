from __future__ import annotations

from execserver.core.shell_snapshot import Snapshot
from execserver.core.snapshot_cache import MAX_ATTEMPTS, MAX_ENTRIES, PAUSE_S, SnapshotCache

SNAPSHOT = Snapshot("bash", b":\n", {})


def test_a_snapshot_is_found_again() -> None:
    cache = SnapshotCache()
    assert cache.may_capture("a", 0.0)
    assert cache.find("a") is None
    cache.captured("a", SNAPSHOT, 0.0)
    assert cache.find("a") is SNAPSHOT
    assert cache.find("b") is None
    assert not cache.may_capture("a", 100.0)


def test_a_failure_is_tried_again_a_few_times_with_pauses() -> None:
    cache = SnapshotCache()
    for attempt in range(MAX_ATTEMPTS):
        now = attempt * PAUSE_S
        assert cache.may_capture("a", now)
        cache.captured("a", None, now)
        assert not cache.may_capture("a", now + PAUSE_S / 2)
        assert cache.find("a") is None
    assert not cache.may_capture("a", 1e9)


def test_the_least_recently_used_one_is_forgotten() -> None:
    cache = SnapshotCache()
    for number in range(MAX_ENTRIES):
        cache.captured(number, SNAPSHOT, 0.0)
    assert cache.find(0) is SNAPSHOT
    cache.captured("new", SNAPSHOT, 0.0)
    assert len(cache) == MAX_ENTRIES
    assert cache.find(0) is SNAPSHOT
    assert cache.find(1) is None
