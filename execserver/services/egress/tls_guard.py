"""Looks at the first bytes that a process sends into a tunnel: TLS for another host is judged like that host.

One address often serves many hosts, and the name in the TLS message chooses.  Nothing else inside of a tunnel
is looked at, and what is not TLS passes.
"""

from __future__ import annotations

import time

from execserver.egress.decisions import Question
from execserver.egress.tls_hello import BadHello, hello_of, server_name
from execserver.services.egress.judging import Judge
from execserver.services.egress.streams import READ_BYTES, Incoming

_HELLO_S = 15.0


class TlsGuard(Incoming):
    """The bytes that come from a process whose question was admitted; raises OSError for TLS to elsewhere."""

    __slots__ = ("_admitted", "_client", "_is_admitted_tls", "_judge", "_method", "_seen")

    def __init__(
        self, incoming: Incoming, judge: Judge, admitted: Question, method: str | None, client: str
    ) -> None:
        super().__init__(incoming.sock, incoming.buffer)
        self._judge = judge
        self._admitted = admitted
        self._method = method
        self._client = client
        self._seen = False
        self._is_admitted_tls = False

    @property
    def is_intercepted(self) -> bool:
        """True for TLS with a host that a credential may be sent to; waits for the first bytes then.

        Raises OSError as `read` does.
        """
        masked, admitted = self._judge.masked, self._admitted
        if masked is None or not masked.masking.concerns(admitted.host, admitted.port):
            return False
        self._look()
        return self._is_admitted_tls

    def read(self, most: int = READ_BYTES) -> bytes:
        """Return bytes, the first ones once they were judged."""
        if not self._seen:
            self._look()
        return super().read(most)

    def read_now(self) -> bytes | None:
        """Return what is there; None where the first bytes need a look that may have to wait."""
        if not self._seen:
            self.buffer = self.buffer or self.sock.recv_now(READ_BYTES)
            if self.buffer and not self._is_harmless():
                return None
            self._seen = True
        return super().read_now()

    def _is_harmless(self) -> bool:
        """Return whether the first bytes are not TLS, or a complete message for the host that was judged."""
        try:
            hello = hello_of(self.buffer)
            return hello == b"" or (hello is not None and server_name(hello) in (None, self._admitted.host))
        except BadHello:
            return False

    def _look(self) -> None:
        self._seen = True
        self.buffer = self.buffer or self.sock.recv(READ_BYTES)
        deadline = time.monotonic() + _HELLO_S
        try:
            while (hello := hello_of(self.buffer)) is None:
                more = self.sock.recv(READ_BYTES, max(0.0, deadline - time.monotonic()))
                if not more:
                    return
                self.buffer += more
            name = server_name(hello) if hello else None
        except BadHello as error:
            raise OSError(str(error)) from None
        self._is_admitted_tls = bool(hello) and name in (None, self._admitted.host)
        if name is not None and name != self._admitted.host:
            self._check(Question(self._admitted.protocol, name, self._admitted.port))

    def _check(self, question: Question) -> None:
        verdict = self._judge.policy.judge(question)
        if not verdict.allows:
            self._judge.tell(verdict, question, self._method, self._client)
            raise OSError(f"TLS for {question.host}: {verdict.reason}")
