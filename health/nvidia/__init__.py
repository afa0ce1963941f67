"""NVIDIA's error codes and what each asks for."""
