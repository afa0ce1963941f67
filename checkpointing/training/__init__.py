"""The calls for training scripts: save and load."""
