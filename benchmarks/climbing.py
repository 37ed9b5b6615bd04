"""Models for runs whose steps all do the same work, however long they are: every proposal wins its
minibatch, and every val task has many prompts that are best on it.

The teacher numbers its prompts. On train questions the student is worth more the higher that number
is; on the others it is right half of the time, which makes gepa's frontier as large as it gets.
"""

import hashlib
import itertools

from verifiers_gepa.endpoint import Request

NUMBERS = itertools.count(1)


def answer(request: Request, _: int) -> str:
    """The reply, whose number is its reward (see `climbing_v1.py`)."""
    if request.to_teacher:
        return f"````\nAnswer. {next(NUMBERS)}\n````"
    if request.user.startswith("train"):
        return request.system.partition(" ")[2] or "0"
    return str(hashlib.sha256((request.system + request.user).encode()).digest()[0] % 2)
