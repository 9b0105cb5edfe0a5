"""A pytest plugin: fixtures that are private exec-servers."""
