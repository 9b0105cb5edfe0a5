"""A client for HTTP/1.1 over gevent sockets: URLs, proxies, TLS, redirects, bodies read as they come.

It serves `http/request` and the registry calls of remote mode.
"""
