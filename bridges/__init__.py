"""Using other libraries' environments in vf-rl, and vf-rl's in other libraries."""
