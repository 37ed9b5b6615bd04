"""What a server's reason to finish says about an answer: whole, cut, filtered, broken, or unknown.

One table for the teacher's replies and the student's answers. It lies with `direct-chat`, which
reads the student's and does without this package where only `vf-eval` uses it.
"""

from direct_chat.finish import BROKEN, CALLS, CUT, FILTERED, WHOLE, Finish, finish_of

__all__ = ["BROKEN", "CALLS", "CUT", "FILTERED", "WHOLE", "Finish", "finish_of"]
