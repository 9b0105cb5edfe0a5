"""From a sandbox with a network of its own to proxies of the host, and to nothing else."""
