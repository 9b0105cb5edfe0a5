"""`sync` and `cp`: two trees, what differs, and doing it."""
