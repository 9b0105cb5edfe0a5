"""The process that starts and reaps all commands.  Standard library only, one thread."""
