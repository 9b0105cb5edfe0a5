"""A relay is upgraded under a real executor and a real client, whose streams lose nothing."""

from __future__ import annotations

import hashlib
import sys

import gevent

from execserver.client import Output, RemoteProcess
from tests.support import proc
from tests.support.greenlets import the_hub_settles
from tests.support.remote_scene import RemoteScene, is_reliable, output
from tests.support.upgrades import upgraded

__all__ = ["the_hub_settles"]

UPGRADES = 5

# Prints random bytes until its input ends, and then the digest of all of them.
GENERATOR = """
import hashlib, random, select, sys, time
chance, digest = random.Random(1), hashlib.sha256()
while not select.select([0], [], [], 0.002)[0]:
    block = chance.randbytes(1 << 16)
    digest.update(block)
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
sys.stdout.buffer.write(digest.digest())
"""
_DIGEST_BYTES = 32


def digests_of(stream: RemoteProcess) -> tuple[bytes, bytes]:
    """Return the digest of what a process printed, and what it says that this is."""
    digest, tail = hashlib.sha256(), b""
    for event in stream:
        if isinstance(event, Output):
            data = tail + event.data
            digest.update(data[:-_DIGEST_BYTES])
            tail = data[-_DIGEST_BYTES:]
    return digest.digest(), tail


def test_streams_of_a_real_client_go_on_over_several_upgrades() -> None:
    with RemoteScene() as scene, scene.connect() as client:
        assert is_reliable(client)
        relay, threads = scene.relay, gevent.get_hub().threadpool
        threads.apply(upgraded, (relay,))
        descriptors = proc.descriptor_count(relay.pid)
        stream = client.start([sys.executable, "-c", GENERATOR], pipe_stdin=True)
        digests = gevent.spawn(digests_of, stream)
        echo = client.start(["cat"], pipe_stdin=True)
        sent = b""
        for number in range(UPGRADES):
            piece = bytes([number]) * 300_000
            echo.write(piece)
            sent += piece
            said = threads.apply(upgraded, (relay,))
            assert "going on: 1 streams, 2 connections" in said
        stream.close_stdin()
        found, told = digests.get()
        assert found == told
        echo.close_stdin()
        assert output(echo) == sent
        assert client.resumptions == 0
        # Each end has connected once, before the first upgrade; and nothing is left open.
        assert relay.errors().count(" connected: environment=") == 2
        assert relay.errors().count("upgraded from") == UPGRADES + 1
        assert proc.descriptor_count(relay.pid) <= descriptors
