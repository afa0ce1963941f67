"""The meaning of a GPU's state, memory and Xids for a verdict."""
