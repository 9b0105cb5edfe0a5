"""A tree of files: one here, one of a box, and one as an archive that is read and written as a stream."""
