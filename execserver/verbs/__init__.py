"""What the program does besides serving: one module for each verb of the command line."""
