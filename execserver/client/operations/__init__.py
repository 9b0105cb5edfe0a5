"""Each method of the API once: what it asks and what it makes of the answers, without any I/O.

`call` has the type of an operation and how the client on gevent carries one out.
"""
