"""`supervise classify`."""
