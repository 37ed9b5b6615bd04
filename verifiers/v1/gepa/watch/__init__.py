"""A run while it goes: on the terminal, and in trackers.

May import `run.py` and what it may import.
"""
