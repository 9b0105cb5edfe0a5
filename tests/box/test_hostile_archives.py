"""`cp` from a box whose `tar` means ill: entries that lead out, and streams that do not end."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from execserver.box.transfer import copies
from execserver.box.trees import tar
from tests.box.liar import EVIL, Asked, Liar
from tests.box.lying_trees import archived, flagged, sending, small_files
from tests.box.test_hostile_box import ESCAPED, Visit
from tests.box.test_hostile_box import run as run

FOLDER = archived(b"./x", tar.DIRECTORY, mode=0o755)
Unpacked = Callable[..., tuple[int, str]]


@pytest.fixture
def unpacked(run: Visit, tmp_path: Path) -> Unpacked:
    """Copies from a box whose `tar` sends these bytes; returns the status, and what was said."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (outside / "kept").chmod(0o600)

    def unpack(*pieces: bytes, code: int = 0) -> tuple[int, str]:
        shutil.rmtree(tmp_path / "back", ignore_errors=True)
        with small_files(), Liar(process_start=sending(*pieces, code=code)) as liar:
            status, _, err = run(liar, "cp", ":x", "back")
        assert set(os.listdir(tmp_path)) <= {"outside", "back"}
        assert os.listdir(outside) == ["kept"]
        kept = (outside / "kept").stat()
        assert ((outside / "kept").read_text(), kept.st_mode & 0o777, kept.st_nlink) == ("kept", 0o600, 1)
        return status, err

    return unpack


@pytest.mark.parametrize(
    "target",
    [b"../outside/kept", b"/etc/passwd", b"x/../../outside/kept", b"outside/kept", b"./x/../y", b"", b"x\0y"],
)
def test_a_hard_link_leads_nowhere_else(target: bytes, unpacked: Unpacked, tmp_path: Path) -> None:
    link = flagged(b"./x/l", b"1", target=target)
    if b"\0" in target:  # only a pax header can have it
        link = with_pax(link, linkpath=target)
    status, err = unpacked(FOLDER + link + tar.END)
    assert (status, os.listdir(tmp_path / "back")) == (1, []), err


def with_pax(entry: bytes, **records: bytes) -> bytes:
    """Return an entry with a pax header before it."""
    body = b"".join(tar._record(key.encode(), value) for key, value in records.items())
    head = bytearray(flagged(b"./PaxHeaders/x", b"x"))
    head[124:136] = b"%011o\0" % len(body)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + body + bytes(tar.padding(len(body))) + entry


def test_a_hard_link_to_a_link_is_that_link(unpacked: Unpacked, tmp_path: Path) -> None:
    link = archived(b"./x/l", tar.SYMLINK, target=os.fsencode(tmp_path / "outside/kept"))
    again = flagged(b"./x/m", b"1", target=b"./x/l")
    over = archived(b"./x/m", content=b"evil", mode=0o777)
    assert unpacked(FOLDER + link + again + over + tar.END) == (0, "")
    assert (tmp_path / "back/l").is_symlink()
    assert (tmp_path / "back/m").read_text() == "evil"


@pytest.mark.parametrize("below", [b"kept", b"new", b"d/e"])
def test_nothing_goes_through_a_link_that_came_before(
    below: bytes, unpacked: Unpacked, tmp_path: Path
) -> None:
    link = archived(b"./x/l", tar.SYMLINK, target=os.fsencode(tmp_path / "outside"))
    for kind in (tar.FILE, tar.DIRECTORY, tar.SYMLINK):
        through = archived(b"./x/l/" + below, kind, mode=0o777, target=b"/" if kind == tar.SYMLINK else b"")
        status, err = unpacked(FOLDER + link + through + tar.END)
        assert (status, "cannot write below" in err) == (1, True), err


KINDS = {
    "file": archived(b"./x/a", content=b"evil"),
    "folder": archived(b"./x/a", tar.DIRECTORY),
    "link": archived(b"./x/a", tar.SYMLINK, target=b"../outside"),
}


@pytest.mark.parametrize("order", [*itertools.permutations(KINDS)], ids=" ".join)
def test_a_name_of_several_kinds_stays_within(
    order: Iterable[str], unpacked: Unpacked, tmp_path: Path
) -> None:
    below = archived(b"./x/a/kept", content=b"evil")
    status, err = unpacked(FOLDER + b"".join(KINDS[each] for each in order) + below + tar.END)
    assert (status, "cannot write below" in err) == (1, True)


@pytest.mark.parametrize("flag", [b"3", b"4", b"6", b"S", b"M", b"V", b"Z"])
def test_what_is_no_file_is_left_out(flag: bytes, unpacked: Unpacked, tmp_path: Path) -> None:
    odd = flagged(b"./x/" + EVIL.encode().replace(b"../../", b"")[:40], flag, mode=0o666)
    status, err = unpacked(FOLDER + odd + archived(b"./x/z", content=b"good", mode=0o6755) + tar.END)
    assert (status, err.count("is no file, folder or link"), r"\x1b]0;owned" in err) == (1, 1, True)
    assert os.listdir(tmp_path / "back") == ["z"]
    assert (tmp_path / "back/z").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    ("odd", "complaint"),
    [
        (with_pax(flagged(b"./x/l", b"2"), linkpath=b"a\0b"), "a target with a NUL byte"),
        (with_pax(flagged(b"./x/a", b"0"), path=b"./x/a\0b"), "which nobody asked for"),
        (with_pax(flagged(b"./x/a", b"0"), path=b"./x/" + b"n" * 300), "File name too long"),
        (with_pax(flagged(b"./x/a", b"0"), path=b"./x/" + b"d/" * 300 + b"a"), "which nobody asked for"),
        (with_pax(flagged(b"./x/a", b"0"), path=b"./x/" + b"n" * 70_000), "a header has"),
        (with_pax(flagged(b"./x/a", b"0"), size=b"9" * 19), "a size is damaged"),
        (with_pax(flagged(b"./x/a", b"0"), size=b"-1"), "a number is damaged"),
        (with_pax(flagged(b"./x/a", b"0"), mtime=b"9" * 30), "a number is damaged"),
        (with_pax(flagged(b"./x/l", b"2", target=b"t"), mtime=b"4611686018427387904.999999999"), ""),
        (with_pax(flagged(b"./x/l", b"2", target=b"t"), mtime=b"-4611686018427387904.999999999"), ""),
        (flagged(b"./x/a", b"0", modified_ns=-(2**63)), ""),
        (b"\x01" * 512, "a number is damaged"),
        (flagged(b"./x/a", b"0")[:100] + b"\xff" * 412, "a header is damaged"),
    ],
)
def test_what_no_tar_would_send_is_refused_or_harmless(
    odd: bytes, complaint: str, unpacked: Unpacked
) -> None:
    status, err = unpacked(FOLDER + odd + tar.END)
    assert (status, complaint in err) == (1 if complaint else 0, True), err


def test_content_that_is_cut_or_longer_is_told(unpacked: Unpacked, tmp_path: Path) -> None:
    entry = archived(b"./x/a", content=b"e" * 5000)
    for sent in (entry[:3000], entry[:-512], tar.header(tar.Entry(b"./x/a", tar.FILE, 2**40)) + b"e" * 5000):
        status, err = unpacked(FOLDER + sent)
        assert (status, "it is cut off" in err) == (1, True)
        assert os.listdir(tmp_path / "back") == []
    status, err = unpacked(FOLDER + entry + b"e" * 512 + tar.END)
    assert (status, "a number is damaged" in err) == (1, True)


# --- streams that do not end -------------------------------------------------------------------------------


def without_end(pieces: Iterable[bytes], stream: str = "stdout") -> Callable[[Asked], None]:
    """Return what starts a program that prints pieces until nobody reads them any more."""

    def send(asked: Asked) -> None:
        asked.result({"processId": asked.params["processId"]})
        try:
            for seq, piece in enumerate(pieces, 1):
                asked.output(seq, piece, stream)
        except OSError:
            return

    return send


@pytest.mark.parametrize(
    ("pieces", "complaint"),
    [
        (itertools.chain([FOLDER + tar.END], itertools.repeat(bytes(10_240))), "it goes on behind its end"),
        (itertools.repeat(with_pax(b"", comment=b"x") * 20), "headers follow each other without an entry"),
        (itertools.repeat(with_pax(b"", path=b"./x") * 20), "headers follow each other without an entry"),
    ],
    ids=["behind its end", "headers", "names"],
)
def test_an_archive_that_never_ends_is_given_up(
    pieces: Iterable[bytes], complaint: str, run: Visit, tmp_path: Path
) -> None:
    with Liar(process_start=without_end(pieces)) as liar:
        status, _, err = run(liar, "cp", ":x", "back")
    assert (status, complaint in err) == (1, True), err


def test_what_a_tar_says_is_shown_in_part_and_not_obeyed(unpacked: Unpacked, run: Visit) -> None:
    def complain(asked: Asked) -> None:
        asked.result({"processId": asked.params["processId"]})
        for seq in range(1, 50):
            asked.output(seq, EVIL.encode() * 100 + b"\n", "stderr")
        asked.end(50, 2)

    with Liar(process_start=complain) as liar:
        status, _, err = run(liar, "cp", ":x", "back")
    assert (status, ESCAPED[:20] in err, len(err) < 400_000) == (1, True, True)


def test_a_tar_that_says_nothing_is_given_up(run: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "PATIENCE_S", 0.3)
    for pieces in ((), (FOLDER,)):
        with Liar(process_start=without_end(pieces)) as liar:
            status, _, err = run(liar, "cp", ":x", "back")
        assert (status, "its `tar` has said nothing for 0.3 s" in err) == (255, True), err
