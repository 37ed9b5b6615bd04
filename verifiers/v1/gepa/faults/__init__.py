"""Whose fault a failure is, what is tried again, and what must stay out of files and logs.

May import `config.py`, `settings` and `verifiers.v1.utils`.
"""
