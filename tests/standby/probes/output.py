"""Writes to its streams in several ways and dies without flushing, so that what arrives shows how each is buffered."""

import os
import sys

from observed import recorded

recorded()
sys.stdout.write("a line\n")
sys.stderr.write("half a line")
print("printed", file=sys.stderr)  # noqa: T201 - print is the subject
os.write(1, b"raw ")
os.write(2, b"raw ")
sys.stdout.write("no newline, ")
sys.stdout.flush()
os.system("echo from a shell; echo and its stderr >&2")  # noqa: S605, S607 - a child with inherited streams is the subject
for number in range(int(sys.argv[1])):
    sys.stdout.write(f"{number:09d}\n")
sys.stdout.write("ünicode \N{SNOWMAN}\n")
os._exit(0)
