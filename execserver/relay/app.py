"""A running relay: puts the parts together, reacts to signals, shuts down in order.

On SIGTERM or SIGINT `/readyz` answers 503 and no new connection is let in; after `drain_s` every peer gets a
shutdown notice; the process ends a bounded time later.  A second signal skips the first wait.  SIGHUP reads
certificate and tokens again.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import gevent
from gevent import signal_handler
from gevent.event import Event
from gevent.hub import get_hub

from execserver import name_services
from execserver.eventloop.deadline import at_most
from execserver.eventloop.idle_memory import IdleMemory
from execserver.eventloop.signals import on_end_signals
from execserver.own_process import (
    raise_open_files_limit,
    return_free_memory,
    settle_allocator,
    settle_collector,
)
from execserver.relay.admission import Admission
from execserver.relay.api import Api
from execserver.relay.byte_streams import server_context
from execserver.relay.limits import Limits
from execserver.relay.listener import RelayListener
from execserver.relay.metrics import Metrics
from execserver.relay.registry import Registry
from execserver.relay.rendezvous import Rendezvous
from execserver.relay.state import MemoryState, RelayState
from execserver.relay.tokens import TokenBook, TokenFileError
from execserver.settings import Settings

_log = logging.getLogger(__name__)

_POLL_S = 0.05
_OTHER_DESCRIPTORS = 128  # for files, and for unauthenticated connections beyond the places
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RelayConfig(NamedTuple):
    """The options of the command line."""

    token_file: str
    limits: Limits = Limits()
    state_path: str | None = None
    certificate: str | None = None
    key: str | None = None
    public_url: str | None = None
    public_metrics: bool = False


class Relay:
    """One relay on one listening socket, which it owns."""

    def __init__(self, config: RelayConfig, sock: socket.socket, settings: Settings) -> None:
        """Read tokens, state and certificate.  Raises TokenFileError, StateFileError, OSError."""
        # The tree costs at each spawn, and nothing reads it.
        gevent.config.track_greenlet_tree = False
        name_services.use_built_in_ones()
        self._config = config
        self._book = TokenBook(config.token_file)
        context = self._make_context()
        self._state = _open_state(config.state_path)
        self._metrics = Metrics()
        self._rendezvous = Rendezvous(
            self._state, self._book, config.limits, self._metrics, time.time, settings.tcp_user_timeout_s
        )
        registry = Registry(self._state, self._rendezvous, config.limits, self._metrics, time.time)
        api = Api(
            registry,
            self._rendezvous,
            self._book,
            self._metrics,
            base=config.public_url or own_base(sock, config.certificate is not None),
            fixed_base=config.public_url is not None,
            public_metrics=config.public_metrics,
        )
        self._admission = Admission(
            config.limits.connections, self._rendezvous.count_sockets, self._rendezvous.count_sockets_of
        )
        self._listener = RelayListener(sock, config.limits, self._admission, api, self._rendezvous.attach)
        self._listener.context = context
        self._stop, self._hurry = Event(), Event()

    def run(self, announce: Callable[[], None]) -> int:
        """Serve until a signal; call `announce` once requests are answered.  Returns the exit status."""
        raise_open_files_limit()
        self._heed_open_files_limit()
        settle_allocator()  # halves the time of a stream: else each record would cost page faults
        on_end_signals(self._end_soon, _END_SIGNALS)
        signal_handler(signal.SIGHUP, self.reload)
        every = self._config.limits.token_check_s
        watch = get_hub().loop.timer(every, every)
        watch.start(self._look_at_tokens)
        self._listener.start()
        announce()
        settle_collector()
        idle_memory = IdleMemory(return_free_memory)
        idle_memory.start()
        # gevent runs greenlets that only yield for this long before it looks for input; see `server`.
        sys.setswitchinterval(0.0002)
        _log.info("relay serving: known=%d", len(self._book))
        self._stop.wait()
        self._drain()
        watch.stop()
        idle_memory.close()
        self._state.close()
        for number in _END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second one must not spoil the exit status now
        return 0

    def reload(self) -> None:
        """Read certificate and tokens again; what cannot be read stays as it was."""
        try:
            self._listener.context = self._make_context()
            self._book.reload()
        except (OSError, TokenFileError) as error:
            _log.error("reload failed, going on with what was there before: %s", error)
            return
        self._rendezvous.end_revoked()
        _log.info("reloaded: known=%d", len(self._book))

    def _heed_open_files_limit(self) -> None:
        """Reduce the places to the number of descriptors that the system allows."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        places = max(1, limit - _OTHER_DESCRIPTORS)
        if limit != resource.RLIM_INFINITY and places < self._admission.places:
            _log.warning("the limit of open files, %d, leaves room for %d connections", limit, places)
            self._admission.places = places

    def _end_soon(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _drain(self) -> None:
        limits = self._config.limits
        # The listener stays open until the end, so that `/readyz` and refused calls get their 503.
        self._rendezvous.draining = True
        _log.info("draining: goodbye in %g s", limits.drain_s)
        if self._rendezvous.count_sockets():
            self._hurry.wait(limits.drain_s)
        self._rendezvous.send_shutdown_notice()
        with at_most(limits.close_timeout_s):
            while self._rendezvous.count_sockets():
                gevent.sleep(_POLL_S)
        self._listener.close()
        self._rendezvous.end()

    def _look_at_tokens(self) -> None:
        try:
            changed = self._book.reload(changed_only=True)
        except TokenFileError as error:
            _log.error("the tokens stay as they were: %s", error)
            return
        if changed:
            _log.info("tokens changed: known=%d", len(self._book))
            self._rendezvous.end_revoked()

    def _make_context(self) -> ssl.SSLContext | None:
        config = self._config
        if config.certificate is None or config.key is None:
            return None
        return server_context(config.certificate, config.key)


def serve(config: RelayConfig, sock: socket.socket, announce: Callable[[], None]) -> int:
    """Serve until a signal; call `announce` once requests are answered.  Raises what `Relay` raises."""
    return Relay(config, sock, Settings.from_environment(os.environ)).run(announce)


def own_base(sock: socket.socket, tls: bool) -> str:
    """Return the beginning of URLs that lead to a listening socket, such as `wss://192.0.2.1:8443`."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'wss' if tls else 'ws'}://{shown}:{port}"


def _open_state(path: str | None) -> RelayState:
    if path is None:
        return MemoryState()
    from execserver.relay.sqlite_state import SqliteState  # late: SQLite is loaded only with --state

    return SqliteState(path)
