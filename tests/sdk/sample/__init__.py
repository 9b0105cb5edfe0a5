"""A small asyncio package, whose blocking twin the tests write and use."""
