"""Log lines on stderr: level, text or JSON format, secrets redacted.

Modules log through the standard library's `logging.getLogger("execserver...")`.  This module decides the
level, formats, redacts and writes.  A line has at most 4,096 bytes, because the kernel then takes it whole or
refuses it at once: a stderr that nobody reads costs lines, which are counted, and never stops the server.
Nothing is written to stdout, which is for the listen URL or the protocol.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import time
from collections.abc import Iterable, Mapping

LEVELS = {
    "off": logging.CRITICAL + 10,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}
DEFAULT_LEVEL = "warn"
_PRIORITIES = {"error": 3, "warn": 4, "info": 6, "debug": 7}  # of syslog

LEVEL_VARIABLE = "EXECSERVER_LOG"
REFERENCE_LEVEL_VARIABLE = "RUST_LOG"
_OWN_TARGETS = ("execserver", "codex_exec_server")

# Up to this size a write to a pipe is never split (PIPE_BUF on Linux).
_MAX_LINE_BYTES = 4096
_STDERR = 2

_HIDDEN = "[redacted]"
_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|PASSWD", re.IGNORECASE)
_MIN_SECRET_CHARACTERS = 8
_PATTERNS = (
    # authorization: Bearer abc -> authorization: Bearer [redacted]
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]+"), rf"\1 {_HIDDEN}"),
    # ws://user:pw@host -> ws://[redacted]@host
    (re.compile(r"(://)[^/\s@\"']+@"), rf"\1{_HIDDEN}@"),
    # token=abc, "api_key": "abc", OPENAI_API_KEY=abc.  Matched at the start of a word only, with possessive
    # quantifiers: with backtracking a word of some thousand letters would cost a second.
    (
        re.compile(
            r"(?i)((?<![\w-])[\w-]*(?:token|secret|passwo?r?d|api[_-]?key)[\w-]*+[\"']?\s*+[:=]\s*+[\"']?)"
            r"[^\s\"'&,;}]+"
        ),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"), _HIDDEN),
    # A token of this server: its id may be read, its MAC not.
    (re.compile(r"\b(xst1\.[0-9a-f]{16})\.[A-Za-z0-9_.-]+"), rf"\1.{_HIDDEN}"),
)


class Redactor:
    """Redacts secrets in a text: known values, and whatever is in a place where secrets usually are."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # The longest first, so that a secret that contains another one is redacted as a whole.
        self._secrets = sorted(
            {secret for secret in secrets if len(secret) >= _MIN_SECRET_CHARACTERS}, key=len, reverse=True
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Redactor:
        """Treat the value of every variable whose name suggests it as a secret."""
        return cls(value for name, value in environment.items() if _SECRET_NAME.search(name))

    def add(self, secrets: Iterable[str]) -> None:
        """Treat further values as secrets."""
        self._secrets = sorted(
            {*self._secrets, *(secret for secret in secrets if len(secret) >= _MIN_SECRET_CHARACTERS)},
            key=len,
            reverse=True,
        )

    def without_known(self, text: str) -> str:
        """Return the text without the values that are known to be secret; everything else stays as it is."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text

    def __call__(self, text: str) -> str:
        """Return the text without its secrets."""
        text = self.without_known(text)
        if _is_free(text):
            return text
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text


def _is_free(text: str) -> bool:
    """Return whether surely no pattern matches, as in most texts; each pattern has one of these words."""
    if not text.isascii():  # some letters beyond ASCII count as `s` or `k` where case does not
        return False
    low = text.lower()
    return not (
        ("bearer" in low or "basic" in low or "://" in low or "token" in low or "secret" in low)
        or ("passw" in low or "api" in low or "sk-" in low or "xst1." in low)
    )


class LineFormatter(logging.Formatter):
    """One line per record: `2026-01-31T12:00:00.123456Z  INFO execserver.app: text`, or a JSON object."""

    def __init__(self, form: str, redact: Redactor) -> None:
        super().__init__()
        self._json = form == "json"
        self.redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the redacted line without its line end; a traceback becomes part of it."""
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        message = self.redact(message)
        whole_seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        stamp = f"{whole_seconds}.{int(record.created % 1 * 1e6):06d}Z"
        level = level_name(record.levelno)
        if not self._json:
            # Further lines are indented, so that every line without an indent starts a record.
            return f"{stamp} {level.upper():>5} {record.name}: " + message.replace("\n", "\n  ")
        fields = {"time": stamp, "level": level, "target": record.name, "message": message}
        return json.dumps(fields, ensure_ascii=False)


class StderrHandler(logging.Handler):
    """Writes lines to descriptor 2 without ever waiting; reports how many it had to drop."""

    def __init__(self, descriptor: int = _STDERR, *, with_priority: bool = False) -> None:
        """`with_priority`: begin each line with `<N>`, by which the journal of systemd knows its level."""
        super().__init__()
        self._descriptor = descriptor
        self._with_priority = with_priority
        self.dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, or count it as dropped if stderr is full or gone."""
        line = self.format(record)
        if self.dropped:
            line = f"({self.dropped} log lines were dropped here: stderr was full)\n{line}"
        if self._with_priority:
            # Each line of a record, since the journal takes lines for records.
            prefix = f"<{_PRIORITIES[level_name(record.levelno)]}>"
            line = "\n".join(prefix + each for each in line.split("\n"))
        if self._write(_cut(line)):
            self.dropped = 0
        else:
            self.dropped += 1

    def _write(self, data: bytes) -> bool:
        poll = select.poll()
        try:
            poll.register(self._descriptor, select.POLLOUT)
            if not poll.poll(0):
                return False
            os.write(self._descriptor, data)
        except OSError:
            return False
        return True


def configure(level: str, form: str = "text", environment: Mapping[str, str] | None = None) -> None:
    """Send the records of `execserver` at `level` and above to stderr; a second call replaces the first."""
    variables = os.environ if environment is None else environment
    handler = StderrHandler(with_priority=is_journal(variables.get("JOURNAL_STREAM", ""), _STDERR))
    redact = Redactor.from_environment(variables)
    handler.setFormatter(LineFormatter(form, redact))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, StderrHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    # From `warn` on only for libraries: at lower levels they print the traffic.
    root.setLevel(max(LEVELS[level], logging.WARNING))
    logging.getLogger("execserver").setLevel(LEVELS[level])


def is_journal(stream: str, descriptor: int) -> bool:
    """True if a descriptor is the stream to systemd's journal that JOURNAL_STREAM names."""
    try:
        facts = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{facts.st_dev}:{facts.st_ino}"


def active_redactor() -> Redactor:
    """Return the redactor of the log, to which secrets can be added; a new one if there is no log."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, StderrHandler) and isinstance(handler.formatter, LineFormatter):
            return handler.formatter.redact
    return Redactor.from_environment(os.environ)


def level_from_environment(environment: Mapping[str, str], default: str = DEFAULT_LEVEL) -> str:
    """Return the level in EXECSERVER_LOG, or in RUST_LOG, which users of the reference server know.

    Both take a level (`info`) or directives (`warn,execserver=debug`); anything else is ignored.
    """
    text = environment.get(LEVEL_VARIABLE) or environment.get(REFERENCE_LEVEL_VARIABLE) or ""
    general = own = None
    for directive in text.lower().split(","):
        target, equals, level = directive.strip().rpartition("=")
        if level not in LEVELS:
            continue
        if not equals:
            general = level
        elif target.split("::")[0] in _OWN_TARGETS:
            own = level
    return own or general or default


def level_name(number: int) -> str:
    """Return the name of the highest of our levels that a record reaches."""
    for name in ("error", "warn", "info"):
        if number >= LEVELS[name]:
            return name
    return "debug"


def _cut(line: str) -> bytes:
    data = line.encode("utf-8", "backslashreplace")
    if len(data) < _MAX_LINE_BYTES:
        return data + b"\n"
    return data[: _MAX_LINE_BYTES - 5].decode("utf-8", "ignore").encode() + b" ...\n"
