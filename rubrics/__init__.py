"""How good it was: outcomes in [0, 1], process penalties, metrics."""
