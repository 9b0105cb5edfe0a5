"""The audit log: what was done on this machine, in a form that shows if somebody changed it afterwards."""
