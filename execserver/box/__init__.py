"""The person's client: boxes by name or URL, and what `run`, `shell` and the like do with one.

Built on `execserver.client`; loaded only by the verbs that need it, never by a server.  What a box sends is
not trusted: it is escaped before a terminal shows it as part of a message, and bounded.
"""
