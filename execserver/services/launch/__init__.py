"""Starting commands, and the zygote as the server sees it."""
