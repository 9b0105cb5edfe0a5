"""Measures an exec-server from outside, beside another one.  Standard library only."""
