"""The guest: our program inside every sandbox, its PID 1. Standard library only, Python 3.8 or newer.

Everything else in the container is hostile to it, and nothing it says is believed outside without a check.
"""
