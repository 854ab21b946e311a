"""An installed environment of the verifiers package, as a vf-rl environment."""
