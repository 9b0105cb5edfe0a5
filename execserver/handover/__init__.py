"""What a server hands over to the program that takes its place, and who may ask for that."""
