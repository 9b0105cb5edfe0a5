"""Entry point of `codex-execve-wrapper`: what a patched shell starts in place of every program.

    codex-execve-wrapper FILE [ARGV]...

It asks over the socket that CODEX_ESCALATE_SOCKET names (shell tool contract).  Then it becomes the program,
waits while another process runs it with this one's descriptors, or prints why it may not run.  Arguments and
environment pass as the bytes they are, and everything after FILE is taken as it is, argv[0] included.  It is
not for people: every failure is a line on stderr and exit status 1.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import _socket
import os
import struct
import sys
from _json import encode_basestring_ascii as _quoted

from execserver.protocol.errors import os_error_text
from execserver.zygote.supervision.wrapper.frames import (
    MAX_DESCRIPTORS,
    FrameError,
    WrapperFrameReader,
    send_frame,
    send_rights,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOCKET_VARIABLE = b"CODEX_ESCALATE_SOCKET"
PRIVATE_VARIABLES = (SOCKET_VARIABLE, b"BASH_EXEC_WRAPPER", b"EXEC_WRAPPER")

_NAME = "codex-execve-wrapper"
_USAGE = f"Usage: {_NAME} <FILE> [ARGV]...\n"
_HELP = f"{_USAGE}\nArguments:\n  <FILE>     \n  [ARGV]...  \n\nOptions:\n  -h, --help  Print help\n"
_EXIT_FAILED = 1
_EXIT_USAGE = 2
_MAX_INT = 2**31 - 1
_MOST_NUMBERS = 256  # descriptors that are tried where there is no /proc
# The interpreter ignores them from its start, and the program must not inherit that.
_CHANGED_SIGNALS = (_signal.SIGPIPE, _signal.SIGXFSZ)
_CATCHABLE = {number for number in range(1, 65) if number not in (9, 19, 32, 33)}
_INFO = struct.Struct("=Iii")  # number, error and code
_INFO_BYTES = 128


class _Failure(Exception):
    """The program is not run; the message says why, and `cause` is the error behind it."""

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(f"{message}\n\nCaused by:\n    {cause}" if cause else message)


def main() -> int:
    """Do with the program of the command line what the supervisor answers; return the exit status."""
    # The interpreter's handler would print a traceback where a program just dies of the signal.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        _write(1, _HELP)
        return 0
    mistake = _mistake(words)
    if mistake:
        _write(2, f"error: {mistake}\n\n{_USAGE}\nFor more information, try '--help'.\n")
        return _EXIT_USAGE
    file, *argv = (os.fsencode(word) for word in (words[1:] if words[0] == "--" else words))
    try:
        return _ask_and_act(file, argv)
    except _Failure as failure:
        _write(2, f"Error: {failure}\n")
    except OSError as error:
        _write(2, f"Error: {os_error_text(error.errno or 0)}\n")
    return _EXIT_FAILED


def _mistake(words: Sequence[str]) -> str:
    """Return what is wrong with the arguments, or ""."""
    if not words or words == ["--"]:
        return "the following required arguments were not provided:\n  <FILE>"
    if words[0].startswith("-") and words[0] not in ("-", "--"):
        return (
            f"unexpected argument '{words[0]}' found\n\n"
            f"  tip: to pass '{words[0]}' as a value, use '-- {words[0]}'"
        )
    return ""


def _ask_and_act(file: bytes, argv: list[bytes]) -> int:
    number = _socket_number(os.environb.get(SOCKET_VARIABLE))
    stream = _shake_hands(number)
    reader = WrapperFrameReader()
    send_frame(stream, _request(file, argv, os.getcwdb(), os.environb))
    answer = _receive(stream, reader, "failed to receive EscalateResponse")
    action = answer.get("action")
    if action in ("Run", {"Run": None}):
        return _become(file, argv)
    if action in ("Escalate", {"Escalate": None}):
        return _let_run(stream, reader, number, answer.get("signals") is True)
    if isinstance(action, dict) and isinstance(action.get("Deny"), dict):
        reason = action["Deny"].get("reason")
        _write(2, f"Execution denied: {reason}\n" if isinstance(reason, str) else "Execution denied\n")
        return _EXIT_FAILED
    raise _Failure("failed to receive EscalateResponse", _unknown_action(action))


def _socket_number(text: bytes | None) -> int:
    """Return the number of the inherited socket.  Raises _Failure, in the words of the contract."""
    if text is None:
        raise _Failure("environment variable not found")
    digits = text.removeprefix(b"-") if text.startswith(b"-") else text.removeprefix(b"+")
    if not text:
        raise _Failure("cannot parse integer from empty string")
    if not digits.isdigit():
        raise _Failure("invalid digit found in string")
    if len(digits) > len(str(_MAX_INT)) or int(digits) > _MAX_INT:
        raise _Failure(f"number too {'small' if text[:1] == b'-' else 'large'} to fit in target type")
    if text[:1] == b"-" and int(digits):
        raise _Failure(f"{os.fsdecode(SOCKET_VARIABLE)} is not a valid file descriptor: {int(text)}")
    return int(digits)


def _shake_hands(number: int) -> _socket.socket:
    """Send one end of a new stream to whoever answers; return the other."""
    os.fstat(number)  # raises the contract's error where there is no such descriptor
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    # With family, type and protocol given, Python does not ask the kernel for them: a sandbox refuses
    # getsockopt and getsockname.
    inherited = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, number)
    try:
        _send_handshake(inherited, theirs.fileno())
    except OSError as error:
        cause = os_error_text(error.errno or 0)
        raise _Failure("failed to send handshake datagram", cause) from None
    finally:
        inherited.detach()  # stays open: the program inherits it, too
        theirs.close()
    return ours


def _send_handshake(inherited: _socket.socket, stream: int) -> None:
    while True:
        try:
            send_rights(inherited, b"\0", (stream,))
            return
        except BlockingIOError:  # another process made it non-blocking, for all that share it
            import select

            poll = select.poll()
            poll.register(inherited.fileno(), select.POLLOUT)
            poll.poll()


def _request(file: bytes, argv: Sequence[bytes], workdir: bytes, environ: Mapping[bytes, bytes]) -> bytes:
    """Return the text of the request."""
    arguments = ",".join(_quote(word) for word in argv)
    env = ",".join(
        f"{_quote(name)}:{_quote(value)}" for name, value in environ.items() if name not in PRIVATE_VARIABLES
    )
    head = f'"file":{_quote(file)},"argv":[{arguments}],"workdir":{_quote(workdir)}'
    return f'{{{head},"env":{{{env}}}}}'.encode()


def _quote(word: bytes) -> str:
    """Return a JSON string; bytes that are not UTF-8 become escapes of single surrogates."""
    return _quoted(os.fsdecode(word))


def _receive(stream: _socket.socket, reader: WrapperFrameReader, failure: str) -> dict[str, object]:
    """Wait for the next message.  Raises _Failure."""
    from execserver.protocol.json_text import NotJson, parse

    try:
        text = None
        while text is None:
            text = reader.read(stream)
        message = parse(text, halves=True)
    except (FrameError, NotJson) as error:
        raise _Failure(failure, str(error)) from None
    if not isinstance(message, dict):
        raise _Failure(failure, "invalid type: not an object")
    return message


def _unknown_action(action: object) -> str:
    if action is None:
        return "missing field `action`"
    name = next(iter(action), "") if isinstance(action, dict) else action
    if not isinstance(name, str) or name in ("Run", "Escalate", "Deny"):
        return "invalid type for the field `action`"
    return f"unknown variant `{name}`, expected one of `Run`, `Escalate`, `Deny`"


def _become(file: bytes, argv: list[bytes]) -> int:
    """Become the program, with this process's own environment.  Raises OSError."""
    for number in _CHANGED_SIGNALS:
        _signal.signal(number, _signal.SIG_DFL)
    if argv and argv[0]:
        os.execv(file, argv)
    from execserver.zygote.libc import Libc  # the interpreter takes no empty name

    return Libc().execute(file, argv, [b"%s=%s" % entry for entry in os.environb.items()])


def _let_run(
    stream: _socket.socket, reader: WrapperFrameReader, escalate_socket: int, takes_signals: bool
) -> int:
    """Send this process's descriptors and wait for the end of the program that runs with them."""
    given = _descriptors(without=(escalate_socket, stream.fileno()))
    # Before the program may begin.
    signals = _take_signals() if takes_signals else -1
    names = ",".join(str(number) for number in given)
    more = ',"signals":true' if signals >= 0 else ""
    send_frame(stream, f'{{"fds":[{names}]{more}}}'.encode(), given)
    for number in given:
        if number != 2:  # stderr is kept, to say why there is no result
            # Whoever reads the other end of a pipe waits for its end: only the program may hold it open.
            os.close(number)
    if signals >= 0:
        _await_answer(stream, signals)
    failure = "failed to receive the result of the escalated command"
    result = _receive(stream, reader, failure)
    code, signum = result.get("exit_code"), result.get("signal")
    if not isinstance(code, int):
        raise _Failure(failure, "missing field `exit_code`")
    if signals >= 0 and isinstance(signum, int) and signum in _CATCHABLE | {_signal.SIGKILL}:
        _end_by(signum)
    return code & 0xFF


def _take_signals() -> int:
    """Block what can be caught, except what is ignored; return a descriptor to read it from, or -1."""
    from execserver.zygote.libc import Libc

    taken = [number for number in _CATCHABLE if _signal.getsignal(number) != _signal.SIG_IGN]
    blocked = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        return Libc().take_signals([number for number in taken if number not in blocked])
    except OSError:
        return -1


def _await_answer(stream: _socket.socket, signals: int) -> None:
    """Wait until the other end says something, and pass signals on meanwhile."""
    import select

    poll = select.poll()
    poll.register(stream.fileno(), select.POLLIN)
    poll.register(signals, select.POLLIN)
    while stream.fileno() not in dict(poll.poll()):
        signum, _, code, *_ = _INFO.unpack_from(os.read(signals, _INFO_BYTES))
        # A child from before this program is nobody's outside.
        if signum != _signal.SIGCHLD or code <= 0:
            try:
                send_frame(stream, b'{"signal":%d}' % signum)
            except OSError:
                return  # what has ended is told by the receive


def _end_by(signum: int) -> None:
    """End by a signal, as the program did, and dump no core."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if signum != _signal.SIGKILL:
        _signal.signal(signum, _signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (signum,))


def _descriptors(without: Sequence[int]) -> list[int]:
    """Return the numbers of the descriptors that the program would have, at most MAX_DESCRIPTORS.

    They are in order, so stdio comes first.
    """
    try:
        numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    except OSError:
        numbers = list(range(_MOST_NUMBERS))
    return [number for number in numbers if number not in without and _is_passed_on(number)][:MAX_DESCRIPTORS]


def _is_passed_on(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False  # not open


def _write(descriptor: int, text: str) -> None:
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = text.encode("utf-8", "replace")  # a surrogate that stands for no byte
    try:
        os.write(descriptor, data)
    except OSError:
        pass  # nobody reads it
