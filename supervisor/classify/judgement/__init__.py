"""Which candidate is the cause: what may count, what follows from what, and the verdict that comes out."""
