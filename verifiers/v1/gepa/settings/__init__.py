"""What a run can be told, and how raw settings become one flat block.

May import `verifiers.v1.utils`.
"""
