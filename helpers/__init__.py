"""Entry points of the programs that execserver is under other names.  Standard library only."""
