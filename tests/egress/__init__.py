"""The rules of network proxies."""
