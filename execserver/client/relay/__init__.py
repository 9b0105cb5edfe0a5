"""The way to an executor behind a relay."""
