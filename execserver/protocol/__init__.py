"""The wire as data: messages, methods, records, errors and paths.  No I/O and no clock."""
