"""What a caller's sandbox object asks for.  Standard library only."""
