"""What the teacher reads, what it is asked, and what becomes of its reply.

May import `record` and what it may import.
"""
