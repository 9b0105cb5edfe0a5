"""The twin, written by `python -m tools.sdk.write_twin`."""
