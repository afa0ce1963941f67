"""What `python -m package` runs."""

from package.module import main

main(__name__, __package__, __spec__, globals())
