"""Several runs: one table of them, or two side by side.

May import `report` and what it may import.
"""
