"""One small function per method of the contract, bound to the method table."""
