"""The rules of the wire contract: connections, sessions, output, processes.  No I/O; times are arguments."""
