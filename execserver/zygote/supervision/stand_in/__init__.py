"""The stand-in: what an intercepted process becomes while its program runs outside the sandbox."""
