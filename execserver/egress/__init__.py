"""Which hosts a process may reach: rules, decisions and the texts of refusals, without I/O."""
