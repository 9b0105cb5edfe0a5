"""What turns `sdk/` into packages: the modules it shares with the server, its blocking twin, its wheels."""
