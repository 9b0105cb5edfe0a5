"""The limits of a server, its sessions and its processes, and the account of one with limits."""
