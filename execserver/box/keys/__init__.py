"""Keys that show before the box has answered."""
