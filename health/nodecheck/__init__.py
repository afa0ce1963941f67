"""The node check: finds the bad or slow node, GPU or link of a job by many short trials of changing pairs."""
