"""The rules of the contract: connections, sessions, output, processes.  No I/O; time is passed in."""
