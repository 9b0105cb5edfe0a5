"""File operations as plain functions on native paths.  Standard library only."""
