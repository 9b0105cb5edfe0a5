"""The relay that people host: registry and rendezvous of remote environments, blind to their content."""
