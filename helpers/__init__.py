"""Entry points of the programs that this file is under other names.  Standard library only."""
