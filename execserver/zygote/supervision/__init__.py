"""The exec supervisor: the process of one shell call that decides what runs inside, outside or not at all."""
