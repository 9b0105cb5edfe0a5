"""Exec-servers as the sandboxes and environments of agent frameworks: one module for each framework."""
