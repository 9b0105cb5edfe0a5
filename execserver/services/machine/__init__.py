"""What the server tells of its machine."""
