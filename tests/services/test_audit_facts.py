"""Records made the quick way say what those made the general way do, byte for byte."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.access.identity import Identity
from execserver.audit.chain import MAX_LINE_BYTES, json_text
from execserver.audit.segments import Segments
from execserver.log import Redactor
from execserver.protocol.envelope import Request, Trace
from execserver.protocol.errors import InvalidParams
from execserver.protocol.lifting import LEAST_BYTES, from_client
from execserver.services.reporting import audit
from execserver.services.reporting.audit import EVENTS, AuditTrail
from execserver.services.reporting.audit_facts import MOST_NAMES, facts_of, json_of, quick_text
from execserver.services.reporting.observers import DISCONNECTED, ERROR, SUCCESS, Answered, Who

_NAMES = (
    *("argv", "command", "cwd", "path", "sourcePath", "destinationPath", "recursive", "mode", "processId"),
    *("signal", "host", "port", "url", "method", "clientName", "networkProxy", "other", "dataBase64"),
)
_STRANGE = st.sampled_from(
    [
        *(
            '"\\ud800"',
            '"\\u00e9"',
            '"é"',
            '"\x7f"',
            '"\\u0000\\n\\t\\/"',
            '"\\u2028"',
            "1.0",
            "1.5",
            "1e400",
        ),
        *("-0", "9223372036854775808", "-9223372036854775808", "null", "true", "{}", '{"path":"/b"}', "[]"),
        *('["a",1]', '["a","b"]', '"' + "x" * 2046 + '"', '"' + "x" * 2049 + '"', '"read"', '"replace"'),
        *('"--password=opensesame1"', '"http://u:pw9@host/a?k=v"', '[["a"]]', '{"credentialMasking":1}'),
    ]
)
_VALUES = st.text(max_size=9).map(json.dumps) | st.integers(-5, 5).map(str) | _STRANGE
# A name may come twice, and members may be of any type.
_PARAMS = st.lists(st.tuples(st.sampled_from(_NAMES), _VALUES), max_size=6).map(
    lambda members: "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"
) | st.sampled_from(["[]", "null", "7"])
_IDENTITIES = st.sampled_from(
    [
        Identity("none", ""),
        Identity("jwt", "ada é"),
        Identity("token", "x" * 300),
        Identity("tls", "y" * 3000),
    ]
)


def _lines(folder: Path, answered: list[Answered], quick: bool, patch: pytest.MonkeyPatch) -> bytes:
    with patch.context() as patched:
        if not quick:
            patched.setattr(audit, "quick_text", lambda request: None)
            patched.setattr(audit, "_quick_json", json_text)
        trail = AuditTrail(Segments(str(folder)), Redactor(), lambda: 1_900_000_000.25)
        for each in answered:
            trail.answered(each)
        trail.record("exit", seconds=0.125, why="\x7f")
        trail.close()
    written = (folder / "audit-00000001.jsonl").read_bytes()
    (folder / "audit-00000001.jsonl").unlink()
    return written


def test_a_file_that_comes_in_pieces_is_one_record_until_it_begins_anew(tmp_path: Path) -> None:
    """Or something else is done: who writes it twice is told twice."""

    def piece(name: str, offset: int, result: str = SUCCESS) -> Answered:
        params = {"path": "file:///d", "name": name, "part": "cA==", "offset": offset, "size": 9, "chunk": ""}
        error = InvalidParams("no") if result == ERROR else None
        request = Request(1, "fs/writePart", msgspec.Raw(msgspec.json.encode(params)))
        return Answered(request, Who("0123456789abcdef", Identity("none", "")), result, error, 0.0)

    other = piece("eA==", 0)
    remove = other._replace(request=Request(2, "fs/remove", msgspec.Raw(b'{"path":"file:///d/p"}')))
    damaged = other._replace(request=Request(3, "fs/writePart", msgspec.Raw(b'{"path":1}')))
    stranger = other._replace(who=Who("f" * 16, Identity("none", "")))
    tmp_path.chmod(0o700)
    wanted = [
        [other, piece("eA==", 3), piece("eA==", 6)],
        *([remove], [other], [other], [stranger], [piece("eQ==", 3)], [damaged], [damaged], [other]),
        *([piece("eA==", 6, ERROR)], [piece("eA==", 6)], [other, piece("eA==", 6)], [piece("eA==", 3)]),
    ]
    lines = _lines(tmp_path, [each for group in wanted for each in group], True, pytest.MonkeyPatch())
    seen = [msgspec.json.decode(line)["event"] for line in lines.splitlines()]
    told = ["refusal" if group[0].result == ERROR else "change" for group in wanted]
    assert [event for event in seen if event in ("change", "refusal")] == told


def test_the_record_of_a_piece_names_its_file() -> None:
    params = b'{"path":"file:///d","name":"eP8=","part":"cA==","offset":0,"size":9,"chunk":"QQ=="}'
    request = Request(1, "fs/writePart", msgspec.Raw(params))
    assert quick_text(request) is None
    assert facts_of(request, str) == {"path": "file:///d", "name": "x\\xff"}


def _many(names: list[tuple[bytes, str]]) -> Request:
    entries = [{"name": name, "kind": kind, "content": b"secret"} for name, kind in names]
    params = {"path": "file:///d", "entries": entries}
    return Request(1, "fs/writeMany", msgspec.Raw(msgspec.json.encode(params)))


def test_the_record_of_many_files_names_what_is_written_and_what_is_removed() -> None:
    request = _many([(b"a/b", "file"), (b"x\xff\n", "symlink"), (b"old", "absent"), (b"", "directory")])
    assert quick_text(request) is None
    assert facts_of(request, str) == {
        "path": "file:///d",
        "names": ["a/b", "x\\xff\n", ""],
        "removed": ["old"],
    }


def test_of_more_files_than_a_record_names_it_says_how_many_there_are() -> None:
    written = [(b"%d" % number, "file") for number in range(MOST_NAMES + 3)]
    removed = [(b"-%d" % number, "absent") for number in range(MOST_NAMES + 1)]
    facts = facts_of(_many([*written, *removed]), str)
    assert facts["names"] == [str(number) for number in range(MOST_NAMES)]
    assert facts["removed"] == [f"-{number}" for number in range(MOST_NAMES)]
    assert (facts["moreNames"], facts["moreRemoved"]) == (3, 1)
    exactly = facts_of(_many(written[:MOST_NAMES]), str)
    assert exactly == {"path": "file:///d", "names": facts["names"]}


def test_names_of_any_length_and_any_bytes_leave_a_whole_record(tmp_path: Path) -> None:
    """A name that looks like a line of the log forges none."""
    forged = b'"}\n{"n":9,"at":"x","event":"end"}\n'
    names = [(forged + b"\xff" * 4096, "file")] * MOST_NAMES + [(b"z" * 4096, "absent")] * 9999
    answered = Answered(_many(names), Who("0123456789abcdef", Identity("none", "")), SUCCESS, None, 0.0)
    tmp_path.chmod(0o700)
    lines = _lines(tmp_path, [answered], True, pytest.MonkeyPatch()).splitlines()
    told = msgspec.json.decode(lines[0])
    assert len(lines) == 3
    assert len(lines[0]) <= MAX_LINE_BYTES
    assert (told["event"], told["path"], told["moreRemoved"]) == ("change", "file:///d", 9999 - MOST_NAMES)
    assert told["names"][0].startswith('"}\n{"n":9')


@pytest.mark.parametrize(
    "entries", ["7", '[{"name":"!","kind":"file"}]', '[{"kind":"file"}]', '[{"name":"QQ=="}]']
)
def test_entries_that_are_none_are_said_to_be_unreadable(entries: str) -> None:
    params = f'{{"path":"file:///d","entries":{entries}}}'.encode()
    facts = facts_of(Request(1, "fs/writeMany", msgspec.Raw(params)), str)
    assert facts == {"path": "file:///d", "names": "unreadable"}


def _unpacking(chunk: bytes, **position: int) -> Request:
    params: dict[str, Any] = {"path": "file:///d", "chunk": chunk}
    if position:
        at = {"path": "file:///d/big", "mode": 0, "modifiedAtNs": 0, "refused": False, **position}
        params["position"] = at
    return Request(1, "fs/extract", msgspec.Raw(msgspec.json.encode(params)))


def _archive(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 700
            archive.addfile(info, io.BytesIO(bytes([7]) * 700))
    return made.getvalue()


def test_the_record_of_an_archive_names_what_begins_in_each_piece() -> None:
    whole = _archive("a", "d/b\n", "../x")
    request = _unpacking(whole)
    assert quick_text(request) is None
    assert facts_of(request, str) == {"path": "file:///d", "names": ["a", "d/b\n", "../x"]}
    rest = _unpacking(whole[1024:], offset=512, size=700)
    assert facts_of(rest, str) == {"path": "file:///d", "names": ["d/b\n", "../x"]}
    assert facts_of(_unpacking(b"x" * 512, offset=0, size=10**9), str) == {"path": "file:///d"}
    assert facts_of(_unpacking(b"x" * 512), str) == {"path": "file:///d"}
    many = facts_of(_unpacking(_archive(*map(str, range(MOST_NAMES + 2)))), str)
    assert (many["names"], many["moreNames"]) == ([str(each) for each in range(MOST_NAMES)], 2)
    damaged = Request(1, "fs/extract", msgspec.Raw(b'{"path":"file:///d","chunk":7}'))
    assert facts_of(damaged, str) == {"path": "file:///d", "names": "unreadable"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*EVENTS, "fs/readFile"]),
            _PARAMS,
            st.sampled_from([SUCCESS, SUCCESS, SUCCESS, ERROR, DISCONNECTED]),
            _IDENTITIES,
            st.sampled_from([None, None, Trace("00-trace", None)]),
        ),
        max_size=5,
    )
)
def test_both_ways_write_the_same_log(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[tuple[str, str, str, Identity, Trace | None]],
) -> None:
    folder = tmp_path_factory.mktemp("log")
    folder.chmod(0o700)
    answered = [
        Answered(
            Request(1, method, msgspec.Raw(params.encode()), trace),
            Who("0123456789abcdef", identity),
            result,
            InvalidParams("no") if result == ERROR else None,
            0.0,
        )
        for method, params, result, identity, trace in made
    ]
    patch = pytest.MonkeyPatch()
    assert _lines(folder, answered, True, patch) == _lines(folder, answered, False, patch)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ('{"path":"/a","recursive":true,"dataBase64":"QQ=="}', '"path":"/a","recursive":true'),
        ('{"processId":"p","signal":"interrupt"}', '"processId":"p","signal":"interrupt"'),
        ('{"path":null}', ""),
        ('{"path":"/\\u00e9"}', None),
        ('{"path":7}', None),
        ('{"path":"/a","argv":["sh"]}', None),
        ('{"path":"/a","url":"http://u:p@h/"}', None),
        ('{"path":"' + "x" * 2048 + '"}', None),
    ],
)
def test_plain_members_are_told_the_quick_way_and_no_others(params: str, text: str | None) -> None:
    assert quick_text(Request(1, "fs/remove", msgspec.Raw(params.encode()))) == text


def test_of_a_large_file_only_the_members_are_read() -> None:
    message = json.dumps(
        {"id": 1, "method": "process/write", "params": {"processId": "p", "chunk": "QUJD" * LEAST_BYTES}},
        separators=(",", ":"),
    ).encode()
    lifted = from_client(message)
    assert lifted is not None
    request = Request(1, "process/write", lifted)
    assert quick_text(request) == '"processId":"p"'
    assert facts_of(request, str) == {"processId": "p"}


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.text(max_size=20) | st.integers() | st.booleans() | st.none() | st.lists(st.text(max_size=5)),
    )
)
def test_json_is_the_general_encoder_s(value: dict[str, Any]) -> None:
    assert json_of(value, json_text) == json_text(value)
