"""`supervise doctor`."""
