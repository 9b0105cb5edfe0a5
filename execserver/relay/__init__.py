"""The self-hosted relay: registry and rendezvous of remote environments, blind to their content."""
