"""The process that watches over one shell call: who may run inside, outside, or not at all."""
