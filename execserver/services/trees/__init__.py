"""Many files in one request: walks, searches, archives, batches."""
