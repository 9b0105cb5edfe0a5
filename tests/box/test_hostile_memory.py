"""How much memory a copy takes from a box that sends without measure."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable

import pytest

from execserver.box.trees import tar
from tests.box.boxes import Person
from tests.box.liar import EVIL, Answer, Asked, Liar
from tests.box.lying_trees import TOP, Json, archived, box, endless, entry, in_base64, page
from tests.support.relay_process import program

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

_LITTLE_MIB = 128  # it has 31 when it has copied one file
_MOST_MIB = 768  # for two million names, which are held
_NAMES = 50_000  # of one page
_MOST_PAGES = 100


# Between this process and the program: what an exec's caller had counts as the new program's, too.
_MEASURED = (
    "import resource, subprocess, sys; status = subprocess.call(sys.argv[1:]);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024); sys.exit(status % 256)"
)


def peak_of_copy(person: Person, url: str) -> tuple[int, str, int]:
    """Return the status of a copy, what it has said, and the most memory that it had, in MiB."""
    copy = [*program(), "cp", "-q", "--box", url, ":x", "back"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _MEASURED, *copy],
        capture_output=True,
        text=True,
        env=person.environ,
        cwd=person.home,
        timeout=170,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr, int(done.stdout)


def huge(asked: Asked) -> None:
    asked.say(
        f'{{"id":{asked.call_id},"result":{{"entries":[],"errors":[],"next":null,"x":"{"x" * 10**8}"}}}}'
    )


def flood(asked: Asked) -> None:
    for seq in range(10_000):
        asked.push("process/output", processId="p", seq=seq, stream="stdout", chunk="eHh4" * 5000)
    asked.result(page(TOP))


def failures(number: int) -> Json:
    errors = [{"path": f"file:///x/{number}/{each}", "message": EVIL * 50} for each in range(500)]
    return page(*([] if number else [TOP]), errors=errors, next=in_base64(b"%d" % number))


def others(number: int) -> Json:
    found = [in_base64(b"%d/%d" % (number, each)) for each in range(_NAMES)]
    return page(*([] if number else [TOP]), others=found, next=in_base64(b"%d" % number))


def names(number: int) -> Json:
    found = [entry(b"%0100d" % (number * _NAMES + each)) for each in range(_NAMES)]
    return page(*([] if number else [TOP]), *found, next=in_base64(b"%d" % number))


@pytest.mark.parametrize(
    ("listing", "status", "complaint", "most"),
    [
        (huge, 255, "frame with 1", _LITTLE_MIB),
        (flood, 0, "", _LITTLE_MIB),
        (endless(failures), 1, "more than 10000 names that cannot be read", _LITTLE_MIB),
        (endless(others), 1, "devices, FIFOs and sockets", _LITTLE_MIB),
        (endless(names), 1, "more than 2000000 names", _MOST_MIB),
    ],
    ids=["huge", "flood", "failures", "others", "names"],
)
def test_a_listing_without_measure_takes_bounded_memory(
    listing: Answer, status: int, complaint: str, most: int, person: Person
) -> None:
    with box(fs_list=listing) as liar:
        found, text, peak = peak_of_copy(person, liar.url)
    assert (found, complaint in text) == (status, True), text[-1000:]
    assert peak < most
    assert liar.asked.count("fs/list") <= _MOST_PAGES


def endless_archive(piece: Callable[[int], bytes]) -> Answer:
    """Return what starts a `tar` that prints entries until nobody reads them any more."""

    def send(asked: Asked) -> None:
        asked.result({"processId": asked.params["processId"]})
        try:
            for seq in itertools.count(1):
                asked.output(seq, piece(seq))
        except OSError:
            return

    return send


def folders(number: int) -> bytes:
    return b"".join(archived(b"./x/%d" % (number % 50 + each), tar.DIRECTORY) for each in range(50))


def test_an_archive_without_measure_takes_bounded_memory(person: Person) -> None:
    with Liar(process_start=endless_archive(folders)) as liar:
        found, text, peak = peak_of_copy(person, liar.url)
    assert (found, "it has too many folders" in text) == (1, True), text[-1000:]
    assert peak < _MOST_MIB
