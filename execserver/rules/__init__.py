"""What may run where: the exec rules of the shell tool as plain data, and the decision for one exec."""
