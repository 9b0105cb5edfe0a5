"""What the client makes of the server's JSON, and of its caller's paths."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import msgspec
import pytest

from execserver.client.errors import InvalidPath, ProtocolViolation
from execserver.client.rules import wire
from execserver.client.rules.event_log import Closed, Exited, Output
from execserver.protocol.paths import PathUri
from execserver.protocol.process import ReadResponse, WriteParams

OUTPUT = {"processId": "p", "seq": 1, "stream": "stdout", "chunk": "eA=="}


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


class TestOutput:
    def test_the_usual_spelling_is_decoded_in_one_go(self) -> None:
        message = (
            b'{"method":"process/output","params":{"processId":"p","seq":1,"stream":"pty","chunk":"eA=="}}'
        )
        assert wire.decode_output(message) == ("p", Output(1, "pty", b"x"))
        assert wire._usual_output(message) == wire._any_output(message)

    @pytest.mark.parametrize(
        "members",
        [
            rb'"processId":"a\"b","seq":1,"stream":"pty","chunk":"eA=="',
            rb'"processId":"p","seq":01,"stream":"pty","chunk":"eA=="',
            rb'"processId":"p","seq":18446744073709551616,"stream":"pty","chunk":"eA=="',
            rb'"processId":"p","seq":1,"stream":"tty","chunk":"eA=="',
            rb'"processId":"p","seq":1,"stream":"pty","chunk":"eA="',
            rb'"processId":"p","seq":1,"stream":"pty","chunk":"eB=="',
            rb'"processId":"p","seq":1,"stream":"pty","chunk":"eA==","more":"eA=="',
            rb'"processId":"p","seq":1,"stream":"pty","chunk":"eA\u003d="',
            '"processId":"p","seq":1,"stream":"pty","chunk":"eAé="'.encode(),
        ],
    )
    def test_the_shorter_way_takes_nothing_that_it_might_misread(self, members: bytes) -> None:
        assert wire._usual_output(b'{"method":"process/output","params":{%b}}' % members) is None

    @pytest.mark.parametrize(
        "message",
        [
            json.dumps({"method": "process/output", "params": OUTPUT}),
            json.dumps({"params": OUTPUT, "method": "process/output"}, separators=(",", ":")),
            '{"method":"process/outputs","params":{}}',
            '{"method":"process/output","params":{"processId":"p"}}',
            '{"method":"process/output","params":{',
            '{"id":1,"result":{}}',
            "",
        ],
    )
    def test_anything_else_is_left_to_the_general_way(self, message: str) -> None:
        assert wire.decode_output(message.encode()) is None

    def test_both_ways_agree(self) -> None:
        assert wire.decode_event("process/output", raw(OUTPUT)) == ("p", Output(1, "stdout", b"x"))


class TestAccepted:
    def test_the_short_way_finds_what_the_general_one_finds_in_changed_messages(self) -> None:
        chance, found = random.Random(14), 0
        for _ in range(5000):
            number = chance.choice(["0", "7", "16", "-1", "01", "1.0", "1e3", '"7"', "9" * 18, "9" * 19])
            message = bytearray(b'{"id":%b,"result":{"status":"accepted"}}' % number.encode())
            for _ in range(chance.choice([0, 0, 1, 2])):
                at = chance.randrange(len(message))
                message[at : at + chance.choice([0, 1])] = chance.choice(
                    [b"", b" ", b"1", b"}", b"\\", b"\n"]
                )
            accepted = wire.accepted_call(bytes(message))
            if accepted is not None:
                found += 1
                assert wire.decode_message(bytes(message)) == wire.Response(accepted, wire.ACCEPTED)
        assert found > 1000

    def test_the_short_way_is_the_one_of_an_accepted_write(self) -> None:
        assert wire.accepted_call(b'{"id":12,"result":{"status":"accepted"}}') == 12
        assert wire.accepted_call(b'{"id":12,"result":{"status":"stdinClosed"}}') is None


class TestEvents:
    def test_exit_and_end(self) -> None:
        exited = {"processId": "p", "seq": 2, "exitCode": -1, "somethingNew": []}
        assert wire.decode_event("process/exited", raw(exited)) == ("p", Exited(2, -1, None))
        denied = {**exited, "sandboxDenied": True}
        assert wire.decode_event("process/exited", raw(denied)) == ("p", Exited(2, -1, True))
        assert wire.decode_event("process/closed", raw({"processId": "p", "seq": 3})) == ("p", Closed(3))
        assert wire.decode_event("some/thing", raw(5)) is None

    @pytest.mark.parametrize(
        "changed",
        [
            {"chunk": "eA"},
            {"chunk": "e A=="},
            {"seq": -1},
            {"seq": "1"},
            {"stream": "stdlog"},
            {"processId": None},
        ],
    )
    def test_broken_output_is_a_violation(self, changed: dict[str, object]) -> None:
        with pytest.raises(ProtocolViolation, match="process/output"):
            wire.decode_event("process/output", raw({**OUTPUT, **changed}))


class TestRead:
    ANSWER = {
        "chunks": [{"seq": 4, "stream": "pty", "chunk": "eA=="}],
        "nextSeq": 7,
        "exited": True,
        "exitCode": 3,
        "closed": False,
        "failure": None,
        "sandboxDenied": False,
        "oldestSeq": 4,
        "lostBytes": 100,
    }

    def test_losses_are_taken_from_servers_that_count_them(self) -> None:
        answer = wire.decode(ReadResponse, raw(self.ANSWER), "process/read")
        state = wire.decode_read(answer, announces_gaps=True)
        assert state.chunks == (Output(4, "pty", b"x"),)
        assert (state.next_seq, state.exit_code, state.oldest_seq, state.lost_bytes) == (7, 3, 4, 100)

    def test_other_servers_do_not_say_what_is_lost(self) -> None:
        answer = wire.decode(ReadResponse, raw(self.ANSWER), "process/read")
        state = wire.decode_read(answer, announces_gaps=False)
        assert (state.oldest_seq, state.lost_bytes) == (None, None)

    def test_an_answer_without_next_seq_is_a_violation(self) -> None:
        broken = {name: value for name, value in self.ANSWER.items() if name != "nextSeq"}
        with pytest.raises(ProtocolViolation, match="nextSeq"):
            wire.decode(ReadResponse, raw(broken), "process/read")


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "uri"),
        [
            ("/tmp/a b", "file:///tmp/a%20b"),
            (Path("/tmp/ä"), "file:///tmp/%C3%A4"),
            (b"/tmp/\xff", "file:///tmp/%FF"),
            ("/tmp/\udcff", "file:///tmp/%FF"),
            ("/100%25", "file:///100%2525"),
            ("file:///a%20b", "file:///a%20b"),
            ("file://localhost/x", "file:///x"),
            (PathUri.parse("file:///x"), "file:///x"),
        ],
    )
    def test_absolute_paths_and_uris(self, path: wire.RemotePath, uri: str) -> None:
        assert wire.path_uri(path).uri == uri

    @pytest.mark.parametrize("path", ["", "a/b", "./a", "~", "~/a", "http://h/x", "file:///x#y", b"a"])
    def test_anything_else_is_refused(self, path: wire.RemotePath) -> None:
        with pytest.raises(InvalidPath):
            wire.path_uri(path)


def test_a_sandbox_may_be_given_as_json() -> None:
    sandbox: dict[str, object] = {"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"}
    context = wire.sandbox_context(sandbox)
    assert context is not None
    assert wire.sandbox_context(context) is context
    assert wire.sandbox_context(None) is None
    with pytest.raises(ValueError, match="not a sandbox"):
        wire.sandbox_context({"permissions": 5})


@pytest.mark.parametrize("size", [0, 4095, 4096, 4097, 4098, 300_000])
def test_bytes_of_any_length_are_sent_as_base64(size: int) -> None:
    data = random.Random(size).randbytes(size)
    params = WriteParams(process_id='p"', chunk=data, write_id="w")
    message = json.loads(wire.encode_request(7, "process/write", params))
    assert base64.b64decode(message["params"].pop("chunk"), validate=True) == data
    assert message == {"id": 7, "method": "process/write", "params": {"processId": 'p"', "writeId": "w"}}
    assert params.chunk == data
