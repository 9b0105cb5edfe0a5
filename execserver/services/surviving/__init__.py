"""The parts of a server with --survive-crash that write down what they do; loaded only there."""
