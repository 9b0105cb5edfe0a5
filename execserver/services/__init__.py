"""The owners of processes, descriptors and outgoing connections."""
