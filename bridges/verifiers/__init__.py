"""An installed environment of the verifiers package, as one of ours."""
