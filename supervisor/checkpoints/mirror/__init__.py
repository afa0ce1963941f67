"""The mirrors of one job: what this node sends there, and what it restores from there."""
