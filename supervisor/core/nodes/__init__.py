"""Several nodes: they meet, agree, and decide together."""
