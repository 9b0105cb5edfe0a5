"""Small tools over the event loop, used by several layers: deadlines, delays, liveness, polling, idle memory.

A leaf: imports only gevent, `settings` and the standard library.
"""
