"""Who may connect to a listener, and what they may do."""
