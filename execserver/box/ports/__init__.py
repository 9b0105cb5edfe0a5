"""TCP connections through a box."""
