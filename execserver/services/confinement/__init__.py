"""From a sandbox context to a plan that holds while files change, and what ended sandboxes left."""
