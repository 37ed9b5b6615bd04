"""What a run leaves on disk while it goes, and how a resume reads it again.

May import `faults`, `spend` and what those may import.
"""
