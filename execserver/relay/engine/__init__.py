"""A small client of Redis and Valkey on gevent sockets, and what the relay keeps there."""
