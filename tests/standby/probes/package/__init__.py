"""A package that is run by its name."""

LOADED = __name__
