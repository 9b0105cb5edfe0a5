"""The sessions of a server, with their processes, on their way to the program that takes its place.

`unpack` makes sessions and processes, which stand still.  Once the connections are made that hold sessions,
`go_on` lets everything run, and what comes of it goes to the clients.  Nothing in here waits.

Shell snapshots are no part of it: the next command that asks for one has it taken anew.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from gevent import sleep

from execserver.access import handed_over
from execserver.access.identity import Authenticator
from execserver.core.sessions import Attachment, SessionRecord
from execserver.handover.carrier import Incoming, Outgoing
from execserver.handover.records import PackedNetwork, PackedProcess, PackedSession, PackedSessions
from execserver.services.clients.attachment import Attachment as Sink
from execserver.services.reporting.observers import Who
from execserver.services.running.process import Process
from execserver.services.sessions.host import Session, SessionHost

if TYPE_CHECKING:
    from execserver.egress.rules_file import NetworkRules
    from execserver.services.egress.service import EgressService
    from execserver.services.file_watches.table import WatchTotals
    from execserver.services.ports.forwarding import Forwarding
    from execserver.services.reporting.audit import AuditTrail


_log = logging.getLogger(__name__)


class Shared(Protocol):
    """What sessions share, made when it is first needed (`handlers.context.Services`)."""

    @property
    def forwarding(self) -> Forwarding:
        """Where ports may lead."""

    @property
    def watch_totals(self) -> WatchTotals:
        """What all sessions watch."""

    @property
    def egress(self) -> EgressService:
        """What network proxies share."""

    @property
    def audit(self) -> AuditTrail | None:
        """The audit log, if there is one."""

    @property
    def network_rules(self) -> NetworkRules | None:
        """What commands may reach, whatever clients say."""


def pack(host: SessionHost, out: Outgoing) -> PackedSessions:
    """Return what `unpack` and `go_on` take."""
    ids = {session.processes: session.session_id for session in host}
    retention = [(ids[table], process_id, due) for (table, process_id), due in host.retention if table in ids]
    # In the order in which the detached ones end, which is that of their table.
    in_order = sorted(host, key=lambda session: session.record.expires_at)
    names = {session.processes.attachment: session.session_id for session in host}
    sessions = [_pack_one(host, session, out, names) for session in in_order]
    return PackedSessions(sessions, retention, list(host.expiry), host.limited)


def unpack(
    host: SessionHost, packed: PackedSessions, incoming: Incoming, authenticator: Authenticator | None
) -> None:
    """Take over sessions with their processes."""
    host.count_limited_from(packed.limited)
    for each in packed.sessions:
        _unpack_one(host, each, incoming, authenticator)
    for session_id, process_id, due in packed.retention:
        session = host.find(session_id)
        if session is not None:
            host.retention.restore((session.processes, process_id), due)
    for session_id, due in packed.expiry:
        host.expiry.restore(session_id, due)
    if host.any_kept:
        host.kept.set_timer()


def load_output(host: SessionHost) -> None:
    """Copy what processes had put out before, so that the memory in which it came is free.

    One process in a turn of the loop; who asks for it earlier gets it earlier.
    """
    for session in host:
        for _, process in list(session.processes):
            process.state.log.load()
            sleep(0)


def detach_all(host: SessionHost) -> None:
    """Detach the sessions whose connections have not come along."""
    for session in host:
        if session.record.attachment is Attachment.ATTACHED:
            host.detach(session)


def go_on(
    host: SessionHost,
    packed: PackedSessions,
    incoming: Incoming,
    shared: Shared,
) -> None:
    """Let everything go on that was taken over."""

    def find(session_id: str, process_id: str) -> Process | None:
        session = host.find(session_id)
        return None if session is None else session.processes.own(process_id)

    for each in packed.sessions:
        session = host.find(each.session_id)
        assert session is not None
        for process in each.processes:
            _go_on(host, session, process)
            if process.network is not None:
                _serve_network(session, process, process.network, shared, incoming)
        session.processes.unpack_watches(each.watches, find)
        if each.ports is not None:
            session.ports(shared.forwarding).unpack(each.ports, incoming)
        if each.file_watches:
            session.file_watches(shared.watch_totals).unpack(each.file_watches)


def _pack_one(host: SessionHost, session: Session, out: Outgoing, names: dict[Sink, str]) -> PackedSession:
    record, table = session.record, session.processes
    processes, watches = table.pack(out, lambda attachment: names.get(attachment, ""))
    return PackedSession(
        session_id=session.session_id,
        is_attached=record.attachment is Attachment.ATTACHED,
        keep_s=record.keep_s,
        expires_at=record.expires_at,
        is_kept=host.any_kept and host.kept.is_kept(session.session_id),
        has_spools=table.has_spools,
        closed=table.closed,
        knows_watchers=table.attachment.knows_watchers,
        identity=handed_over.pack(session.identity),
        name=session.name,
        client_name=session.client_name,
        created_at=session.created_at,
        processes=processes,
        limits=table.pack_limits(),
        watches=watches,
        ports=session.pack_ports(out),
        file_watches=session.pack_file_watches(),
    )


def _unpack_one(
    host: SessionHost, packed: PackedSession, incoming: Incoming, authenticator: Authenticator | None
) -> None:
    record = SessionRecord(packed.session_id)
    record.attachment = Attachment.ATTACHED if packed.is_attached else Attachment.DETACHED
    record.keep_s, record.expires_at = packed.keep_s, packed.expires_at
    session = host.adopt(record, handed_over.unpacked(packed.identity, authenticator))
    session.name, session.client_name = packed.name, packed.client_name
    session.created_at = packed.created_at
    session.processes.attachment.knows_watchers = packed.knows_watchers
    if packed.is_kept:
        host.kept.keep_again(session, packed.closed, has_spools=packed.has_spools)
    session.processes.unpack(packed.processes, incoming, lambda log: host.kept.spooled(log))
    if packed.limits is not None:
        session.processes.unpack_limits(packed.limits)


def _go_on(host: SessionHost, session: Session, packed: PackedProcess) -> None:
    process = session.processes.own(packed.process_id)
    assert process is not None
    writer = host.find(packed.writer)
    if writer is not None:
        process.writer = writer.processes.attachment
    if host.observer is not None and not process.state.exited:
        host.observer.process_taken_over(process)
        process.on_exit = host.observer.process_exited
    process.begin()


def _serve_network(
    session: Session, packed: PackedProcess, network: PackedNetwork, shared: Shared, incoming: Incoming
) -> None:
    """Have the proxy of a process serve again, by the rules that the machine has now."""
    from execserver.egress.patterns import ConfigError
    from execserver.egress.providers import Unmaskable
    from execserver.services.egress import launch

    process = session.processes.own(packed.process_id)
    if process is None or process.state.closed:
        return
    rules = shared.network_rules
    machine = None if rules is None else rules.of(session.identity.label)
    place = launch.Place(
        packed.process_id, session.processes.attachment, Who(session.session_id, session.identity)
    )
    try:
        proxy = launch.handed_over(network, machine, place, shared.egress, shared.audit)
        if proxy is not None:
            launch.take_over_masking(proxy, network, shared.egress, incoming)
    except (ConfigError, Unmaskable) as error:  # what the program before this one took
        _log.error("process %s goes on without its network proxy: %s", packed.process_id, error)
        return
    if proxy is not None:
        proxy.take_over(network, incoming)
        process.network, proxy.leader = proxy, process.pid
        proxy.start()
