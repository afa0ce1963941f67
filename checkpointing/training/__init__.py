"""What training scripts call: save and load."""
