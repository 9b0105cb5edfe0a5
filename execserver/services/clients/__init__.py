"""Who a session belongs to now: what is sent there, and what is asked."""
