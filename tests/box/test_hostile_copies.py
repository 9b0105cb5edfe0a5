"""`cp` and `sync` from a box that lies about its trees: nothing outside, a clear end, nothing obeyed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.box.transfer import copies
from execserver.box.trees import there
from execserver.client.operations import trees
from tests.box.liar import EVIL, Answer, Asked
from tests.box.lying_trees import (
    TOP,
    block,
    box,
    endless,
    entry,
    hashes,
    in_base64,
    introduce,
    page,
    said,
    small_files,
)
from tests.box.test_hostile_box import ESCAPED, Visit
from tests.box.test_hostile_box import run as run

LARGE = 600_000  # a file of its own
EVERY = (["cp", ":x", "back"], ["cp", "--resume", ":x", "back"], ["sync", ":x", "back"])
Copy = Callable[..., tuple[int, str]]


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """A folder beside the targets that has something to lose, which no test may find changed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (outside / "kept").chmod(0o600)
    return outside


@pytest.fixture
def copied(run: Visit, tmp_path: Path, ground: Path) -> Copy:
    """Copies from a box in each way; returns the greatest status, and what was said."""

    def copy(ways: tuple[list[str], ...] = EVERY, **answers: Answer) -> tuple[int, str]:
        statuses, texts = [], []
        with small_files(), box(**answers) as liar:
            for words in ways:
                remove(tmp_path / "back")
                status, _, err = run(liar, *words)
                statuses.append(status)
                texts.append(err)
        assert {each.name for each in tmp_path.iterdir()} <= {"outside", "back", ".back.execserver-part"}
        assert os.listdir(ground) == ["kept"]
        assert ((ground / "kept").read_text(), (ground / "kept").stat().st_mode & 0o777) == ("kept", 0o600)
        assert len(set(statuses)) == 1, (statuses, texts)
        return statuses[0], texts[-1]

    return copy


@pytest.mark.parametrize(
    "name", [b"../outside/kept", b"/etc/x", b"a/../../x", b"./x", b"a//b", b"x/", b"x\0y", b"a/" * 256 + b"a"]
)
def test_a_listed_name_that_leads_out_ends_the_copy(name: bytes, copied: Copy, tmp_path: Path) -> None:
    status, err = copied(fs_list=said(page(TOP, entry(b"first"), entry(name))))
    assert (status, "which is no name in a tree" in err) == (255, True)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
@pytest.mark.parametrize("name", [b"", b"a"])
def test_a_name_that_is_listed_twice_ends_the_copy(name: bytes, kind: str, copied: Copy) -> None:
    again = entry(name, kind, target=b"/etc")
    status, err = copied(fs_list=said(page(TOP, entry(b"a"), entry(b"b"), again)))
    assert (status, "twice" in err) == (255, True)


def test_what_is_listed_below_a_file_or_a_link_is_not_written(
    copied: Copy, tmp_path: Path, ground: Path
) -> None:
    link = entry(b"l", "symlink", target=os.fsencode(ground))
    below = [entry(b"l/kept"), entry(b"l/new"), entry(b"l/d", "directory", mode=0o777), entry(b"l/d/e")]
    more = [entry(b"a"), entry(b"a/b"), entry(b"a/l", "symlink", target=b"/etc")]
    status, err = copied(fs_list=said(page(TOP, link, *more, *below, entry(b"ok"))))
    # What they would be below was made a folder for them by then.
    assert (status, err) == (1, "execserver: l: Is a directory\nexecserver: a: Is a directory\n")
    assert ((tmp_path / "back/ok").read_text(), (tmp_path / "back/l").is_symlink()) == ("evil", False)


def test_a_tree_whose_top_is_a_link_is_nothing_but_that(copied: Copy, tmp_path: Path, ground: Path) -> None:
    top = entry(b"", "symlink", target=os.fsencode(ground))
    status, _ = copied(EVERY[:1], fs_list=said(page(top, entry(b"kept"), entry(b"new"))))
    assert (status, os.readlink(tmp_path / "back")) == (1, str(ground))


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        (entry(b"l", "symlink", target=b"a\0b"), "l: the link back/l has a target with a NUL byte"),
        (entry(b"l", "symlink", target=b""), "l: No such file or directory"),
        (entry(b"l", "symlink"), "l: No such file or directory"),
        (entry(b"l", "symlink", target=b"x" * 5000), "l: File name too long"),
        (entry(b"n" * 256), ": File name too long"),
        (entry(EVIL.encode().replace(b"/", b"") + b"n" * 256), ESCAPED[:20]),
    ],
    ids=["NUL in a target", "empty target", "no target", "long target", "long name", "long and obeyed"],
)
def test_what_cannot_be_made_here_is_told_and_the_rest_is_copied(
    listed: dict[str, object], complaint: str, copied: Copy, tmp_path: Path
) -> None:
    status, err = copied(fs_list=said(page(TOP, listed, entry(b"z"))))
    assert (status, complaint in err) == (1, True), err
    assert (tmp_path / "back/z").read_text() == "evil"


@pytest.mark.parametrize("time", [-(2**63), 2**63 - 1])
def test_times_at_the_ends_of_their_range_are_set_as_far_as_possible(
    time: int, copied: Copy, tmp_path: Path
) -> None:
    every = [entry(b"f"), entry(b"d", "directory"), entry(b"l", "symlink", target=b"f")]
    answers = {"fs_list": said(page(TOP, *({**each, "modifiedAtNs": time} for each in every)))}
    assert copied(EVERY[:1], **answers)[0] == 0
    assert (tmp_path / "back/f").read_text() == "evil"


def test_set_id_bits_and_devices_do_not_come(copied: Copy, tmp_path: Path) -> None:
    every = [entry(b"f", mode=0o6755), entry(b"d", "directory", mode=0o7755)]
    others = [in_base64(b"tty\x1b[2J"), in_base64(b"../x")]
    status, err = copied(EVERY[:1], fs_list=said(page(TOP, *every, others=others)))
    assert (status, r"left out: /x/tty\x1b[2J, and 1 more that are no files" in err) == (1, True)
    modes = [(tmp_path / "back" / name).stat().st_mode & 0o7777 for name in "fd"]
    assert modes == [0o755, 0o755]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"kind": "absent"}, {"kind": "device"}, {"size": -1}, {"size": 2**63}, {"mode": 2**31}),
        *({"modifiedAtNs": 2**63}, {"name": "%%%"}, {"name": 5}, {"target": []}),
    ],
    ids=str,
)
def test_an_entry_that_cannot_be_ends_the_copy(
    wrong: dict[str, object], copied: Copy, tmp_path: Path
) -> None:
    assert copied(fs_list=said(page(TOP, {**entry(b"f"), **wrong})))[0] == 255
    assert not (tmp_path / "back").exists()


# --- contents that are other than listed -----------------------------------------------------------------


def test_a_small_file_may_be_another_size_by_now(copied: Copy, tmp_path: Path) -> None:
    content = in_base64(b"y" * 100_000)
    assert copied(EVERY[:1], fs_readMany=said({"files": [{"content": content}]}))[0] == 0
    assert (tmp_path / "back/f").read_bytes() == b"y" * 100_000


def short(asked: Asked) -> None:
    asked.result({"chunk": in_base64(b"x"), "eof": True})


def long(asked: Asked) -> None:
    asked.result({"chunk": in_base64(b"x" * (asked.params["len"] + 1)), "eof": True})


@pytest.mark.parametrize(
    ("answer", "status", "complaint"),
    [
        (short, 1, "big: it changes while it is read"),
        (block, 1, "big: it changes while it is read"),  # there is still more where the file ends
        (long, 255, "bytes of a file, got"),
    ],
)
def test_a_large_file_of_another_size_than_listed_gets_no_name(
    answer: Answer, status: int, complaint: str, copied: Copy, tmp_path: Path
) -> None:
    found, err = copied(fs_list=said(page(TOP, entry(b"big", size=LARGE))), fs_readBlock=answer)
    assert (found, complaint in err) == (status, True), err
    assert set(os.listdir(tmp_path / "back")) <= {".big.execserver-part"}


def test_a_large_file_of_any_size_is_collected_below_the_target_until_it_ends(copied: Copy) -> None:
    listed = page(TOP, entry(b"big", size=2**63 - 1))
    status, err = copied(fs_list=said(listed), fs_readBlock=short)
    assert (status, "big: it changes while it is read" in err) == (1, True)


def test_a_name_for_an_open_file_is_not_sent_back_at_any_length(copied: Copy) -> None:
    long_name = said({"handleId": "h" * 10**6})
    status, err = copied(fs_list=said(page(TOP, entry(b"big", size=LARGE))), fs_open=long_name)
    assert (status, "name for an open file has 1000000 characters" in err) == (255, True)


@pytest.mark.parametrize("number", [0, 2])
def test_contents_of_other_files_than_those_asked_for_end_the_copy(number: int, copied: Copy) -> None:
    status, err = copied(fs_readMany=said({"files": [{"content": in_base64(b"x")}] * number}))
    assert (status, f"asked for 1 files, got {number}" in err) == (255, True)


# --- listings and hashes without end ----------------------------------------------------------------------


def same(number: int) -> dict[str, object]:
    return page(*([TOP] if number == 0 else []), next=in_base64(b"m"))


def in_turn(number: int) -> dict[str, object]:
    return page(TOP, next=in_base64(b"%d" % (number % 2)))


def barren(number: int) -> dict[str, object]:
    return page(*([TOP] if number == 0 else []), next=in_base64(b"%d" % number))


def passed_over(number: int) -> dict[str, object]:
    return page(entry(b".execserver-%016x" % number), next=in_base64(b"%d" % number))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (same, "the same page again and again"),
        (in_turn, "the folder itself twice"),
        (barren, "pages without anything new"),
        (passed_over, "more than"),
    ],
)
def test_a_listing_that_never_ends_is_given_up(
    make: Callable[[int], dict[str, object]],
    complaint: str,
    copied: Copy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(there, "MAX_NAME_BYTES", 2_000)
    monkeypatch.setattr(trees, "MOST_BARREN", 20)
    for words in EVERY:
        status, err = copied((words,), fs_list=endless(make))
        assert (status in (1, 255), complaint in err) == (True, True), err


def test_hashes_that_never_come_are_given_up(
    run: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "MOST_BARREN", 20)
    (tmp_path / "back").mkdir()
    (tmp_path / "back/f").write_text("mine")
    barren = endless(lambda number: {"entries": [], "errors": [], "next": f"file:///x/{number}"})
    with box(fs_hash=barren) as liar:
        status, _, err = run(liar, "sync", ":x", "back")
    assert (status, "pages without anything new" in err) == (255, True)
    assert (tmp_path / "back/f").read_text() == "mine"


def test_hashes_of_nothing_or_of_a_folder_make_no_file_the_same(run: Visit, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    refusal = {"entries": [], "errors": [{"path": "file:///x/f/g", "message": EVIL}], "next": None}
    for answer in (said(hashes("file:///x/f")), said(refusal), lambda asked: asked.refuse(EVIL)):
        (tmp_path / "back/f").write_text("mine")
        with box(fs_hash=answer) as liar:
            assert run(liar, "sync", ":x", "back")[0] == 0
        assert (tmp_path / "back/f").read_text() == "evil"


# --- paths and texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["file://host/x", "file:///C:/x%2F.."])
def test_paths_of_another_kind_of_host_are_told_and_lead_nowhere(path: str, copied: Copy) -> None:
    error = {"path": path, "message": EVIL}
    home: Answer = lambda asked: introduce(asked, userHomeDir=path)  # noqa: E731
    status, err = copied(initialize=home)
    assert (status, f"its home is {path}" in err) == (255, True), err
    for ways, answers in (
        (EVERY[2:], {"fs_canonicalize": said({"path": path})}),
        (EVERY, {"fs_list": said(page(TOP, errors=[error]))}),
    ):
        status, err = copied(ways, **answers)
        assert (status, "paths of another kind of host" in err) == (255, True)


def test_refusals_are_shown_and_not_obeyed(copied: Copy) -> None:
    large = said(page(TOP, entry(b"big", size=LARGE)))
    refuse: Answer = lambda asked: asked.refuse(EVIL)  # noqa: E731
    for refused in ("fs_list", "fs_open", "fs_readBlock"):
        status, err = copied(**{"fs_list": large, refused: refuse})
        assert (status, ESCAPED in err) == (1, True), err
    status, err = copied(fs_readMany=said({"files": [{"error": EVIL}]}))
    assert (status, ESCAPED in err) == (1, True)
    errors = [{"path": "file:///x/%1B%5B2J", "message": EVIL}]
    status, err = copied(fs_list=said(page(TOP, errors=errors)))
    assert (status, rf"/x/\x1b[2J: {ESCAPED}" in err) == (1, True)


def test_steps_are_shown_and_not_obeyed(run: Visit) -> None:
    name = EVIL.encode().replace(b"../../", b"")
    every = [entry(name), entry(b"l", "symlink", target=EVIL.encode())]
    with box(fs_list=said(page(TOP, *every))) as liar:
        status, out, _ = run(liar, "sync", "-n", ":x", "back")
        assert (status, ESCAPED.replace("../../", "") in out, ESCAPED in out) == (0, True, True)
        status, out, _ = run(liar, "sync", "--json", ":x", "back")
        assert (status, [json.loads(line)["action"] for line in out.splitlines()][-1]) == (0, "summary")


# --- answers that are none ----------------------------------------------------------------------------------

NONE: dict[str, Answer] = {
    "null": said(None),
    "number": said(5),
    "list": said([]),
    "wrong members": said({"entries": 5, "files": {}, "handleId": [], "chunk": 1, "path": None}),
    "no JSON": lambda asked: asked.say(EVIL),
    "no text": lambda asked: asked.say(b"\0\xff"),
    "deep": lambda asked: asked.say(f'{{"id":{asked.call_id},"result":' + "[" * 100_000),
    "deep and whole": lambda asked: asked.say(
        f'{{"id":{asked.call_id},"result":' + "[" * 100_000 + "]" * 100_000 + "}"
    ),
    "a request": lambda asked: asked.say('{"id":1,"method":"fs/writeFile","params":{"path":"/x"}}'),
    "end": lambda asked: asked.hang_up(),
}
ASKED = ("fs_canonicalize", "fs_list", "fs_readMany", "fs_open", "fs_readBlock", "fs_hash")


@pytest.mark.parametrize("what", NONE)
@pytest.mark.parametrize("method", ASKED)
def test_an_answer_that_is_none_ends_the_copy(method: str, what: str, run: Visit, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back/f").write_text("mine")  # as long as the other, so that hashes are asked for
    listed = page(TOP, entry(b"f"), entry(b"big", size=LARGE))
    with box(**{"fs_list": said(listed), method: NONE[what]}) as liar:
        status, _, err = run(liar, "sync", ":x", "back")
    assert (status, err[:7]) == (255, "Error: "), err
    assert set(os.listdir(tmp_path / "back")) <= {"f", ".big.execserver-part"}


def test_answers_that_nobody_waits_for_change_nothing(copied: Copy, tmp_path: Path) -> None:
    def answer(asked: Asked) -> None:
        for odd in (10**6, -5, "x", 2**70):
            asked.say(json.dumps({"id": odd, "result": page(TOP, entry(b"other"))}))
            asked.say(json.dumps({"id": odd, "error": {"code": -1, "message": EVIL}}))
        asked.push("process/output", processId="p", seq=1, stream="stdout", chunk="eA==")
        asked.push("fs/changes", watchId="w", changes=[])
        asked.push("x/y", z=1)
        for _ in range(2):
            asked.result(page(TOP, entry(b"f")))

    assert copied(EVERY[:1], fs_list=answer)[0] in (0, 255)
    assert not (tmp_path / "back/other").exists()


# --- time --------------------------------------------------------------------------------------------------


def in_drips(asked: Asked) -> None:
    """Begin an answer that never ends, a byte at a time."""
    text = f'{{"id":{asked.call_id},"result":{{"entries":['
    head = bytes((0x81, 127)) + (10**6).to_bytes(8, "big")
    try:
        for byte in itertools.chain(head, text.encode(), itertools.repeat(0x20)):
            asked.raw(bytes((byte,)))
    except OSError:
        return  # given up


def in_notices(asked: Asked) -> None:
    """Send what nobody asked for in the place of an answer, without end."""
    try:
        while True:
            asked.push("process/output", processId="p", seq=1, stream="stdout", chunk="eA==")
    except OSError:
        return


@pytest.mark.parametrize(
    "answer", [in_drips, in_notices, lambda asked: None], ids=["drips", "notices", "nothing"]
)
def test_an_answer_that_does_not_come_in_time_is_given_up(
    answer: Answer, copied: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PATIENCE_S", 0.3)
    for method in ("fs_list", "fs_readMany"):
        status, err = copied(EVERY[:1], **{method: answer})
        assert (status, "within 0.3 s" in err) == (255, True), err
