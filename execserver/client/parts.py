"""The parts of a client that not every program uses: each is loaded with the first use of its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from execserver.client.greenlets.flow import Gate
from execserver.client.greenlets.router import Router
from execserver.client.greenlets.session import Session

if TYPE_CHECKING:
    from execserver.client.ports import RemotePorts


class Parts:
    """What a client can do beside processes: files, HTTP requests, ports, sessions of others."""

    _session: Session
    _gate: Gate
    _router: Router
    _ports: RemotePorts | None = None

    @property
    def ports(self) -> RemotePorts:
        """TCP connections from and to the server's machine."""
        if self._ports is None:
            from execserver.client.ports import RemotePorts  # late: few programs forward anything

            self._ports = RemotePorts(self._session)
            self._router.follow_ports(self._ports)
        return self._ports

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Load a part of the client with the first use of one of its methods: few programs use all."""
            for names, bind in _PARTS:
                if name in names:
                    bind(self)
                    return vars(self)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _bind_sessions(self) -> None:
        from execserver.client.sessions import RemoteSessions

        self.sessions = RemoteSessions(self._session, self._gate, self._router)
        self.session_keep = self.sessions.session_keep
        self.session_list = self.sessions.session_list
        self.session_end = self.sessions.session_end
        self.session_processes = self.sessions.session_processes
        self.watch_process = self.sessions.watch_process

    def _bind_http(self) -> None:
        from execserver.client.http import HttpClient

        http = HttpClient(self._session, self._gate, self._router.streams)
        self.http_request = http.http_request
        self.http_stream = http.http_stream

    def _bind_files(self) -> None:
        from execserver.client.files import RemoteFiles

        self.files = RemoteFiles(self._session, self._router)
        self.read_file = self.files.read_file
        self.write_file = self.files.write_file
        self.open_file = self.files.open_file
        self.create_directory = self.files.create_directory
        self.get_metadata = self.files.get_metadata
        self.canonicalize = self.files.canonicalize
        self.read_directory = self.files.read_directory
        self.remove = self.files.remove
        self.copy = self.files.copy
        self.walk = self.files.walk


# Attributes of a client, and what makes them.
_PARTS: Final = (
    (
        {
            *("sessions", "session_keep", "session_list", "session_end", "session_processes"),
            "watch_process",
        },
        Parts._bind_sessions,
    ),
    ({"http_request", "http_stream"}, Parts._bind_http),
    (
        {
            *("files", "read_file", "write_file", "open_file", "create_directory", "get_metadata"),
            *("canonicalize", "read_directory", "remove", "copy", "walk"),
        },
        Parts._bind_files,
    ),
)
