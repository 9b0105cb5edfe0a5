"""The file of a recording: what was written comes back, within its limits."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from execserver.audit.recording import (
    CUT,
    EXIT,
    FOLDER,
    INPUT,
    KEPT,
    OUTPUT,
    NoRecording,
    Recording,
    names,
    read,
)
from tests.support.proc import descriptor_count

AT_MS = 1_700_000_000_000
AT_US = AT_MS * 1000


def recorded(folder: Path, process: str = "p", limit: int = 2**20) -> Recording:
    return Recording(str(folder), AT_MS, {"process": process, "argv": ["a", "b\n"]}, limit)


def chunks(folder: Path, name: str = "p") -> list[tuple[int, bytes, bytes]]:
    return list(read(str(folder), name)[1])


def test_what_was_recorded_comes_back(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    recording.add(OUTPUT, b"\xff\0\n", AT_US + 5)
    recording.add(INPUT, b"", AT_US - 1)  # the clock was set back
    recording.close()
    recording.add(OUTPUT, b"too late", AT_US)
    assert chunks(tmp_path) == [(5, OUTPUT, b"\xff\0\n"), (0, INPUT, b"")]
    assert read(str(tmp_path), recording.name)[0] == {"process": "p", "argv": ["a", "b\n"]}
    assert (tmp_path / FOLDER / f"{recording.name}.rec").stat().st_mode & 0o777 == 0o600


def test_beyond_its_limit_nothing_is_recorded_but_that(tmp_path: Path) -> None:
    recording = recorded(tmp_path, limit=100)
    for _ in range(50):
        recording.add(OUTPUT, b"0123456789", AT_US)
    recording.add(EXIT, b"0", AT_US)
    recording.close()
    codes = [code for _, code, _ in chunks(tmp_path)]
    assert codes == [OUTPUT, OUTPUT, CUT, EXIT]


def test_a_chunk_that_the_disk_does_not_take_leaves_nothing_behind(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    size = os.stat(tmp_path / FOLDER / f"{recording.name}.rec").st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, before[1]))
        recording.add(OUTPUT, bytes(200), AT_US)
        recording.add(OUTPUT, b"x", AT_US)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    recording.close()
    assert [code for _, code, _ in chunks(tmp_path)] == [CUT, OUTPUT]


@pytest.mark.parametrize("cut", [1, 5, 14])
def test_a_torn_end_ends_it(tmp_path: Path, cut: int) -> None:
    recording = recorded(tmp_path)
    recording.add(OUTPUT, b"whole", AT_US)
    recording.add(OUTPUT, b"torn", AT_US)
    recording.close()
    path = tmp_path / FOLDER / f"{recording.name}.rec"
    os.truncate(path, path.stat().st_size - cut)
    assert [data for _, _, data in chunks(tmp_path)] == [b"whole"]


def test_the_oldest_go(tmp_path: Path) -> None:
    place = tmp_path / FOLDER
    place.mkdir()
    for number in range(KEPT + 3):
        (place / f"{number:013}-00000000.rec").touch()
    recorded(tmp_path).close()
    known = names(str(place))
    assert (len(known), known[0]) == (KEPT, f"{4:013}-00000000")


def test_one_that_was_not_started_is_gone_and_others_are_none(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "0000000000001-00000000.rec").write_bytes(b"\xff no header\n")
    recorded(tmp_path).discard()
    with pytest.raises(NoRecording, match="has no recording p"):
        read(str(tmp_path), "p")


@pytest.mark.parametrize("words", [["\x00" * 100_000] * 3, ["\U0001f600"] * 300_000])
def test_words_without_end_leave_it_readable(tmp_path: Path, words: list[str]) -> None:
    """Else a command would be hidden by its own words."""
    recording = Recording(str(tmp_path), AT_MS, {"process": "p", "argv": words})
    recording.add(OUTPUT, b"seen", AT_US)
    recording.close()
    facts, found = read(str(tmp_path), "p")
    assert list(found) == [(0, OUTPUT, b"seen")]
    argv = facts["argv"]
    assert isinstance(argv, list)
    assert argv[0][:1] == words[0][:1]
    assert "... (" in argv[-1]


def test_on_a_full_disk_there_is_none_and_nothing_of_it_stays(tmp_path: Path) -> None:
    recorded(tmp_path).close()
    descriptors = descriptor_count(os.getpid())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(OSError, match="No space left on device"):
            recorded(tmp_path, "q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert descriptor_count(os.getpid()) == descriptors
    assert len(names(str(tmp_path / FOLDER))) == 1
