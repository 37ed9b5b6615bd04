"""How proposals are drawn, compared and kept, and when the search ends.

May import `adapter.py`, `reflection.py` and what those may import.
"""
