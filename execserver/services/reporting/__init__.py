"""Who is told what happens in a server: metrics and the audit log."""
