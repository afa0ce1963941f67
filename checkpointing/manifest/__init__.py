"""Manifests: what the bytes of a verified checkpoint are, and the check of a checkpoint against its manifest."""
