"""What the state, the memory and the Xids of a GPU mean for a verdict."""
