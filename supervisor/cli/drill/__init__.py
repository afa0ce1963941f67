"""`supervise drill KIND -- CMD`: the user's own command with one fault in it."""
