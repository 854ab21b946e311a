"""What runs beside a sandbox: the services of a Compose file, and the way out through a proxy."""
