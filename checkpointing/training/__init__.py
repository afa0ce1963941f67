"""What training scripts call: save, load and snapshot."""
