"""Tests against the real programs; played only with EXECSERVER_REFERENCE=1."""
