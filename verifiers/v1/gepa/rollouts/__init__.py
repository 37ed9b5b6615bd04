"""Everything about running episodes: where, how often, and what is measured.

May import `record` and what it may import.
"""
