"""A failure: the ranks are stopped, the cause is judged, the plan is made."""
