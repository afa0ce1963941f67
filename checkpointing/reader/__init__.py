"""Reads each new checkpoint of a node once, in a process of its own, and hands its bytes on."""
