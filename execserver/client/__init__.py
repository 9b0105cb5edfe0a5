"""Use an exec-server from Python."""
