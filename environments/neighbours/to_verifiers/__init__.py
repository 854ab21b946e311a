"""Any of our environments as a taskset of the verifiers package, so that prime-rl trains in it."""
