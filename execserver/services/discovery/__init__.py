"""Skills and plugins of this machine, found for a client's agent (wire contract, section 10)."""
