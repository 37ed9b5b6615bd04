"""Everything before the first rollout: the plan, the checks, the identity, the run directory and
preflight.

May import `teacher`, `record` and what those may import.
"""
