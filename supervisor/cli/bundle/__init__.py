"""`supervise bundle`."""
