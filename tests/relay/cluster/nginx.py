"""nginx with the configuration of `deploy/relay-cluster`, on loopback and without TLS."""

from __future__ import annotations

import re
from pathlib import Path

import gevent

from tools.cluster.balancer import CONFIGURATION
from tools.cluster.cluster import Cluster
from tools.cluster.service import Service, accepts, free_port, program

_TLS = re.compile(r" *ssl_\w+ .*\n")
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def configuration_in(folder: Path) -> str:
    """Return the configuration with its files in a folder, and no more descriptors than any user may have."""
    text = (CONFIGURATION.parent / "nginx.conf").read_text()
    text = text.replace("worker_rlimit_nofile 131072;\n", "").replace(
        "worker_connections 50000", "worker_connections 500"
    )
    text = text.replace("/var/log/nginx", str(folder)).replace("/etc/nginx/relay", str(folder))
    paths = "".join(f"    {name}_temp_path {folder}/{name};\n" for name in _TEMPORARY)
    return text.replace("http {\n", f"http {{\n{paths}")


class Nginx:
    """One nginx; `service` is its process."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        """Take its place.  Raises Problem."""
        self._port = free_port()
        text = _TLS.sub("", configuration_in(folder))
        text = text.replace("listen 8443 ssl", f"listen 127.0.0.1:{self._port}")
        for number, node in enumerate(cluster.nodes.values(), 1):
            text = text.replace(f"10.0.0.1{number}:8080", node.place)
        configuration = folder / "nginx.conf"
        configuration.write_text(text)
        where = f"daemon off; pid {folder}/nginx.pid; error_log stderr;"
        command = [program("nginx"), "-c", str(configuration), "-p", str(folder), "-g", where]
        self.service = Service("nginx", command, folder, pause=gevent.sleep)

    @property
    def url(self) -> str:
        """The URL that executors and harnesses use."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it."""
        self.service.start(lambda: accepts("127.0.0.1", self._port))

    def stop(self) -> None:
        """End it with its workers."""
        self.service.stop()
