"""Tests of the adapters: the rules here, each framework in an environment of its own."""
