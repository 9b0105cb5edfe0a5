"""What the program does besides serving: one module per verb of the command line."""
