"""What carries messages to a server and back: a WebSocket, or a child's standard input and output."""
