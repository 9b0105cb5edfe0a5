"""The messages between server and supervisor: bytes to values and back, no I/O.

A `Supervision` is part of the request that starts a shell.  Approval prompts and their answers then travel
over a stream socket of their own, each as a frame: its length, a head (kind, code, number of strings, number
of the prompt), and byte strings joined by NUL, which no argument and no path can contain.  Malformed bytes
raise RecordError.
"""

from __future__ import annotations

import struct

from execserver.zygote.records import Record, RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# How the supervisor gets to know of the programs that a shell starts.
NOTIFY = 1  # seccomp user notification: any program, any descendant
WRAPPER = 2  # a patched shell starts the wrapper in place of each program

# How an approval prompt was answered.
ACCEPT = 1
DECLINE = 2
CANCEL = 3
FAILED = 4  # nobody could be asked

LINGER_S = 2.0  # for others to write to the outputs of a shell that has ended

MAX_FRAME_BYTES = 8 * 1024 * 1024  # above what any kernel passes to a new program (6 MiB)

_QUESTION = 1
_ANSWER = 2
_WITHDRAWN = 3
_SHELL_ENDED = 4
_HEAD = struct.Struct("<BB2xIQ")  # kind, code, number of strings, number of the prompt
_LENGTH = struct.Struct("<I")
_SUPERVISION = struct.Struct("<BB2xII")  # interception, flags, bytes of the policy, number of variables
_FULL_PATH = 1


class Supervision(Record):
    """How a shell is watched.

    `policy` holds the encoded exec rules, which see the whole path of a program if `full_path`.  `wrapper` is
    the path of the exec wrapper, for WRAPPER.  `server_env` is the server's own environment as `name=value`
    entries: programs outside get from it what the dynamic loader reads.
    """

    __slots__ = ("full_path", "interception", "policy", "server_env", "wrapper")

    def __init__(
        self,
        policy: bytes,
        full_path: bool = False,
        interception: int = NOTIFY,
        wrapper: bytes = b"",
        server_env: Sequence[bytes] = (),
    ) -> None:
        self.policy = policy
        self.full_path = full_path
        self.interception = interception
        self.wrapper = wrapper
        self.server_env = list(server_env)


class Question(Record):
    """May this program run?  `file` is its absolute path, `argv` includes argv[0]."""

    __slots__ = ("argv", "file", "number", "workdir")

    def __init__(self, number: int, file: bytes, argv: Sequence[bytes], workdir: bytes) -> None:
        self.number = number
        self.file = file
        self.argv = list(argv)
        self.workdir = workdir


class Answer(Record):
    """The answer to the approval prompt of that number: ACCEPT, DECLINE, CANCEL or FAILED."""

    __slots__ = ("action", "number")

    def __init__(self, number: int, action: int) -> None:
        self.number = number
        self.action = action


class ShellEnded(Record):
    """The shell has ended, and others it has started live on while the outputs are in use, for LINGER_S."""

    __slots__ = ()


class Withdrawn(Record):
    """Nobody waits for the answer of that number any more: the process that wanted the program is gone."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


Message = Question | Answer | Withdrawn | ShellEnded


class FrameReader:
    """Cuts a stream into messages.  Holds at most one incomplete frame between two calls."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take what was received; return the messages that it completed.  Raises RecordError."""
        self._data += data
        messages = []
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            # Before the frame has come: nobody may make this side collect without a limit.
            if length > MAX_FRAME_BYTES:
                raise RecordError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._data) < end:
                break
            messages.append(decode_message(bytes(self._data[_LENGTH.size : end])))
            del self._data[:end]
        return messages


def encode_supervision(supervision: Supervision) -> bytes:
    """Return the bytes of a supervision; a NUL in a path or variable raises RecordError."""
    flags = _FULL_PATH if supervision.full_path else 0
    strings = [supervision.wrapper, *supervision.server_env]
    head = _SUPERVISION.pack(
        supervision.interception, flags, len(supervision.policy), len(supervision.server_env)
    )
    return head + supervision.policy + _join(strings)


def decode_supervision(data: bytes) -> Supervision:
    """Return the supervision the bytes hold; anything else raises RecordError."""
    if len(data) < _SUPERVISION.size:
        raise RecordError("a supervision shorter than its head")
    interception, flags, policy_bytes, count = _SUPERVISION.unpack_from(data)
    start = _SUPERVISION.size
    if interception not in (NOTIFY, WRAPPER) or flags & ~_FULL_PATH or policy_bytes > len(data) - start:
        raise RecordError("malformed head of a supervision")
    # The rules are bytes that may hold NULs, so they stand before the joined strings and have a length.
    wrapper, *server_env = _split(data[start + policy_bytes :], 1 + count)
    policy = data[start : start + policy_bytes]
    return Supervision(policy, bool(flags), interception, wrapper, server_env)


def encode_message(message: Message) -> bytes:
    """Return a message as one frame.  Raises RecordError for what no program can be started with."""
    if isinstance(message, Question):
        strings = [message.file, message.workdir, *message.argv]
        body = _HEAD.pack(_QUESTION, 0, len(strings), message.number) + _join(strings)
    elif isinstance(message, Answer):
        body = _HEAD.pack(_ANSWER, message.action, 0, message.number)
    elif isinstance(message, ShellEnded):
        body = _HEAD.pack(_SHELL_ENDED, 0, 0, 0)
    else:
        body = _HEAD.pack(_WITHDRAWN, 0, 0, message.number)
    # The reader would end the socket over such a frame, so the sender must not send it.
    if len(body) > MAX_FRAME_BYTES:
        raise RecordError(f"a frame of {len(body)} bytes")
    return _LENGTH.pack(len(body)) + body


def decode_message(body: bytes) -> Message:
    """Return the message of a frame without its length; anything else raises RecordError."""
    if len(body) < _HEAD.size:
        raise RecordError("a message shorter than its head")
    kind, code, count, number = _HEAD.unpack_from(body)
    rest = body[_HEAD.size :]
    if kind == _QUESTION and code == 0 and count >= 2:
        file, workdir, *argv = _split(rest, count)
        return Question(number, file, argv, workdir)
    if rest or count:
        raise RecordError(f"a message of kind {kind} with strings")
    if kind == _ANSWER and ACCEPT <= code <= FAILED:
        return Answer(number, code)
    if kind == _WITHDRAWN and code == 0:
        return Withdrawn(number)
    if kind == _SHELL_ENDED and code == number == 0:
        return ShellEnded()
    raise RecordError(f"unknown kind {kind} or code {code} of a message")


def _join(strings: Sequence[bytes]) -> bytes:
    joined = b"\0".join(strings)
    # A NUL within a string would be read as the border between two.
    if joined.count(b"\0") != len(strings) - 1:
        raise RecordError("a string holds a NUL byte")
    return joined


def _split(data: bytes, count: int) -> list[bytes]:
    strings = data.split(b"\0")
    # Without the count, no string and one empty string would look the same.
    if len(strings) != count:
        raise RecordError(f"{count} strings announced, {len(strings)} held")
    return strings
