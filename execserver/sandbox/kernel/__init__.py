"""The kernel features that a sandbox is made of: calls, namespaces, mounts, Landlock, filters, privileges."""
