"""What may run where: the rules of the shell tool as plain data, and the decision for one exec."""
