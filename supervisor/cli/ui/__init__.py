"""`supervise ui`: the page of all jobs of a state directory."""
