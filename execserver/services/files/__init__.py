"""File operations: in the event loop, in a thread, in the worker of a sandbox."""
