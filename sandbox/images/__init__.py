"""Images: built from folders, fetched, kept within a bound, and the interpreter brought along."""
