"""One process and all those of a session: output, input, end, and what of it is kept."""
