"""Task folders in the format of Harbor, and the older one of Terminal-Bench."""
