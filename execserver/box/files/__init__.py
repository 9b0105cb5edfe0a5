"""`find`, `grep` and `edit` on the files of a box."""
