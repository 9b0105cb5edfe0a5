"""Interception by the kernel: the seccomp listener for execs, and what is read of the exec callers."""
