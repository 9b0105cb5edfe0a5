"""What a session, a process, a port or a body knows and decides, for every half of the client.  No I/O."""
