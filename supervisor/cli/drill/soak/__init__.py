"""`supervise drill soak -- CMD`: random faults in the user's own command for hours, what came back, and the loss beside a quiet run's."""
