"""Use an exec-server from asyncio: run processes, work on files, reach ports and HTTP on its machine.

What this package shares with the server's own client, without gevent, is imported from `execserver` in a
checkout; the wheel carries copies of those modules as `execserver_client._shared`.
"""
