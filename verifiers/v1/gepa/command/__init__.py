"""Flags and files as one form, and what to tell a person whose command can't run.

May import `config.py`, `settings` and `verifiers.v1.utils`.
"""
