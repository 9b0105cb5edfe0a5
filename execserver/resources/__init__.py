"""Resource limits of processes as the kernel has them: rlimits, control groups, and what /proc tells."""
