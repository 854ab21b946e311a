"""Where untrusted code runs. Empty for now: nothing in the library runs untrusted code yet."""
