"""Reads pickles without running them: what they would build, and whether that is safe."""
