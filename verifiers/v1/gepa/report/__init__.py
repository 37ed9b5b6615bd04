"""What is left of a run, for machines and for people.

May import `evaluation.py` and what it may import.
"""
