"""Helpers of build.py.  Standard library only; no part of the server."""
