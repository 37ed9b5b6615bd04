"""What a run may spend and has spent: rollouts, tokens, money.

May import `config.py`, `settings` and `verifiers.v1.utils`.
"""
