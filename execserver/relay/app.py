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
from typing import TYPE_CHECKING, NamedTuple, Protocol

import gevent
from gevent import signal_handler
from gevent.event import Event
from gevent.hub import get_hub

from execserver import name_services
from execserver.eventloop.deadline import at_most
from execserver.eventloop.idle_memory import IdleMemory
from execserver.eventloop.signals import EndSignals, on_end_signals
from execserver.own_process import (
    free_memory,
    raise_open_files_limit,
    return_free_memory,
    settle_allocator,
    settle_collector,
)
from execserver.relay.admission import Admission
from execserver.relay.api import Api
from execserver.relay.byte_streams import server_context
from execserver.relay.errors import CannotServe
from execserver.relay.limits import Limits
from execserver.relay.listener import RelayListener
from execserver.relay.metrics import Metrics
from execserver.relay.registry import Registry
from execserver.relay.rendezvous import Rendezvous
from execserver.relay.state import MemoryState, RelayState
from execserver.relay.tokens import TokenBook, TokenFileError, Tokens
from execserver.settings import Settings

if TYPE_CHECKING:
    from execserver.relay.cluster.joining import Joining, Membership

_log = logging.getLogger(__name__)

_POLL_S = 0.05
_OTHER_DESCRIPTORS = 128  # for files, and for unauthenticated connections beyond the places
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RelayConfig(NamedTuple):
    """The options of the command line."""

    token_file: str | None  # None: the tokens of the cluster's engine
    limits: Limits = Limits()
    state_path: str | None = None
    certificate: str | None = None
    key: str | None = None
    public_url: str | None = None
    public_metrics: bool = False
    membership: Membership | None = None  # of a cluster


class Parts(NamedTuple):
    """What of a relay is handed over to another program."""

    listener: RelayListener
    rendezvous: Rendezvous
    state: RelayState


class Successions(Protocol):
    """How another program comes in a relay's place; `upgrading.relay` implements it."""

    @property
    def takes_hup(self) -> bool:
        """True if SIGHUP asks for it."""

    def begin(self, signals: EndSignals) -> None:
        """Let it be asked for from now on."""

    def close(self) -> None:
        """Ask no more."""


class Relay:
    """One relay on one listening socket, which it owns."""

    def __init__(self, config: RelayConfig, sock: socket.socket, settings: Settings) -> None:
        """Read tokens, state and certificate.  Raises TokenFileError, StateFileError, OSError."""
        # The tree costs at each spawn, and nothing reads it.
        gevent.config.track_greenlet_tree = False
        name_services.use_built_in_ones()
        self._config = config
        self._book = None if config.token_file is None else TokenBook(config.token_file)
        context = self._make_context()
        self._metrics = metrics = Metrics()
        joining = self._joining()
        self._state = _open_state(config.state_path) if joining is None else joining.state
        tokens = _tokens_of(joining) if self._book is None else self._book
        now = time.time if joining is None else joining.clock.now
        self._rendezvous = Rendezvous(
            self._state, tokens, config.limits, metrics, now, settings.tcp_user_timeout_s
        )
        self._node = (
            None if joining is None else joining.node(self._rendezvous, config.limits, self._lost_name)
        )
        self._rendezvous.placement = self._node
        registry = Registry(self._state, self._rendezvous, config.limits, metrics, now)
        api = Api(
            registry,
            self._rendezvous,
            tokens,
            metrics,
            base=config.public_url or own_base(sock, config.certificate is not None),
            fixed_base=config.public_url is not None,
            public_metrics=config.public_metrics,
        )
        self._admission = Admission(
            config.limits.connections, self._rendezvous.count_sockets, self._rendezvous.count_sockets_of
        )
        self._listener = RelayListener(sock, config.limits, self._admission, api, self._rendezvous.attach)
        self._listener.context = context
        self.parts = Parts(self._listener, self._rendezvous, self._state)
        self._stop, self._hurry = Event(), Event()
        self._status = 0

    def run(self, announce: Callable[[], None], successions: Successions | None = None) -> int:
        """Serve until a signal; call `announce` once requests are answered.  Returns the exit status."""
        raise_open_files_limit()
        self._heed_open_files_limit()
        settle_allocator()  # halves the time of a stream: else each record would cost page faults
        signals = on_end_signals(self._end_soon, _END_SIGNALS)
        if successions is None or not successions.takes_hup:  # a new program reads all that, too
            signal_handler(signal.SIGHUP, self.reload)
        if self._node is not None:
            self._node.start()
        every = self._config.limits.token_check_s
        watch = get_hub().loop.timer(every, every)
        watch.start(self._look_at_tokens)
        self._listener.start()
        announce()
        if successions is not None:
            successions.begin(signals)
        settle_collector()
        idle_memory = IdleMemory(return_free_memory, free_memory)
        idle_memory.start()
        # gevent runs greenlets that only yield for this long before it looks for input; see `server`.
        sys.setswitchinterval(0.0002)
        _log.info("relay serving: known=%s", self._known)
        self._stop.wait()
        if successions is not None:
            successions.close()
        self._drain()
        watch.stop()
        idle_memory.close()
        if self._node is not None:
            self._node.close()
        self._state.close()
        for number in _END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second one must not spoil the exit status now
        return self._status

    @property
    def is_ending(self) -> bool:
        """True once a signal has said so."""
        return self._stop.is_set()

    @property
    def _known(self) -> str:
        return "by-engine" if self._book is None else str(len(self._book))

    def reload(self) -> None:
        """Read certificate and tokens again; what cannot be read stays as it was."""
        try:
            self._listener.context = self._make_context()
            if self._book is not None:
                self._book.reload()
                self._rendezvous.end_revoked()
        except (OSError, TokenFileError) as error:
            _log.error("reload failed, going on with what was there before: %s", error)
            return
        _log.info("reloaded: known=%s", self._known)

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
        self._rendezvous.is_leaving = True
        _log.info("draining: goodbye in %g s", limits.drain_s)
        if self._rendezvous.count_sockets() and self._node is not None:
            self._node.drain(limits.drain_s, self._hurry)
        self._rendezvous.draining = True
        if self._rendezvous.count_sockets() and self._node is None:
            self._hurry.wait(limits.drain_s)
        self._rendezvous.send_shutdown_notice()
        with at_most(limits.close_timeout_s):
            while self._rendezvous.count_sockets():
                gevent.sleep(_POLL_S)
        self._listener.close()
        self._rendezvous.end()

    def _lost_name(self) -> None:
        self._status = 1
        self._end_soon()
        self._hurry.set()

    def _look_at_tokens(self) -> None:
        if self._book is None:
            return
        try:
            changed = self._book.reload(changed_only=True)
        except TokenFileError as error:
            _log.error("the tokens stay as they were: %s", error)
            return
        if changed:
            _log.info("tokens changed: known=%s", self._known)
            self._rendezvous.end_revoked()

    def _joining(self) -> Joining | None:
        if self._config.membership is None:
            return None
        from execserver.relay.cluster.joining import Joining  # late: only with an engine

        return Joining(self._config.membership, self._metrics, os.environ)

    def _make_context(self) -> ssl.SSLContext | None:
        config = self._config
        if config.certificate is None or config.key is None:
            return None
        return server_context(config.certificate, config.key)


def check(config: RelayConfig) -> None:
    """Read what a relay with these options reads at its start.  Raises CannotServe, OSError."""
    if config.certificate is not None and config.key is not None:
        server_context(config.certificate, config.key)
    if config.token_file is not None:
        TokenBook(config.token_file)
    if config.state_path is not None:
        from execserver.relay.sqlite_state import check as check_state

        check_state(config.state_path)


def own_base(sock: socket.socket, tls: bool) -> str:
    """Return the beginning of URLs that lead to a listening socket, such as `wss://192.0.2.1:8443`."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'wss' if tls else 'ws'}://{shown}:{port}"


def _tokens_of(joining: Joining | None) -> Tokens:
    if joining is None:
        raise CannotServe("there is neither a token file nor an engine")
    return joining.tokens


def _open_state(path: str | None) -> RelayState:
    if path is None:
        return MemoryState()
    from execserver.relay.sqlite_state import SqliteState  # late: SQLite is loaded only with --state

    return SqliteState(path)
