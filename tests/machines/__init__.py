"""Small virtual machines, each with one kernel, that run a script and say what it wrote."""
