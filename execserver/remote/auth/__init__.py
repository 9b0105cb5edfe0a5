"""How the executor proves who it is to the registry: `resolve` chooses once at the start."""
