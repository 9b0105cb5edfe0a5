"""The process that starts and reaps all user processes.  Standard library only, one thread."""
