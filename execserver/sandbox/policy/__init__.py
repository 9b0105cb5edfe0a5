"""From what a client asks for to a sandbox plan: request check, policy, resolved paths, patterns."""
