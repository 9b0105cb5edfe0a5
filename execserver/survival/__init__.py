"""What lets a server be killed and lose nothing: its keeper, and what it writes down as it goes."""
