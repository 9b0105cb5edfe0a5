"""The network proxy of a process: it listens on loopback, asks the rules, and connects."""
