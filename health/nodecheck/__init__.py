"""The node check: which node, GPU or link among those of a job is bad or slow, found by many short meetings of ever other pairs."""
