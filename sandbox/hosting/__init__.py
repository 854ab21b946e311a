"""Where sandboxes are kept ready: pools of equal ones, on one engine or on several."""
