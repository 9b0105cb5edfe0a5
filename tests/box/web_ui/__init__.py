"""The console's pages in a real browser."""
