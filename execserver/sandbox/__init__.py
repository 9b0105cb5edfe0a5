"""From a sandbox context to a plan, and from a plan to a confined process.  Standard library only."""
