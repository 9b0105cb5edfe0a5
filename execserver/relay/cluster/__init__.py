"""Several relays as one: a shared registry tells each node which executor is connected where."""
