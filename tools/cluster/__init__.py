"""A relay cluster on one machine, of real programs: Redis, Sentinel, HAProxy, relays, executors, harnesses.

For the demo, the tests and the bench.
"""
