"""File operations inside a sandbox root; the path guard checks every step of a path."""
