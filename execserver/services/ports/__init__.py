"""Forwarded TCP ports: streams and listeners of sessions, where they may lead, who listens."""
