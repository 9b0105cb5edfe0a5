"""Tokens that carry what their holder may do: minting, narrowing, checking, and the server's list of them."""
