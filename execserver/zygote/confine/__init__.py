"""Confined processes: one module per back end, and the processes that start and watch them."""
