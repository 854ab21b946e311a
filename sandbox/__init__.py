"""Where untrusted code runs: the contract, containers, and what speaks for them inside."""
