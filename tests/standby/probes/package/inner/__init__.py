"""A package within the package."""
