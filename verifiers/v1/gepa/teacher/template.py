"""What the teacher is asked. The placeholders are filled in one pass, so a prompt or an example
that contains one is left alone."""

from collections.abc import Sequence

TEMPLATE = """\
You improve the system prompt of an assistant. Below are the prompt as it is now and examples of
what the assistant did with it: the input it got, the conversation, how it was scored, and, where
there is any, feedback on what was right or wrong.

The current system prompt:
<current_prompt>
{current_prompt}
</current_prompt>
{tried}
The examples:
<examples>
{examples}
</examples>

Find out what the task really asks for and where the current prompt lets the assistant down. Take
from the feedback every rule, fact, format and convention that the assistant could not have known,
and state it in the new prompt so that it holds for inputs that you have not seen; don't write down
the examples themselves or their answers. Keep what already works.
{rules}
First explain in a few sentences what you change and why. Then end your reply with the complete new
system prompt, ready to use as it stands, in one block that opens and closes with a line of four
backticks (````)."""

TRIED = """
These prompts were tried in its place and were not better on the examples that they ran on, so
propose something else:
<tried>
{attempts}
</tried>
"""

GUIDANCE = """
The user knows the task and says this of it and of the prompt. Keep to it, also where the examples
suggest something else:
<guidance>
{guidance}
</guidance>
"""

LENGTH_RULE = """
The new prompt may have at most {limit} characters; a longer one is not used.
"""

PROTECT_RULE = """
The following texts must stay in the prompt, word for word; one that lacks any is not used:
<keep>
{texts}
</keep>
"""

PARTS = (TEMPLATE, TRIED, LENGTH_RULE, PROTECT_RULE)
"""What every request may be made of."""


def tried(attempts: str) -> str:
    """The part about rejected proposals, empty where there are none."""
    return TRIED.replace("{attempts}", attempts) if attempts else ""


def rules(limit: int | None, protect: Sequence[str], guidance: str | None) -> str:
    """What the user says to the teacher: guidance, the length in characters that a prompt may have,
    texts that it must hold."""
    section = GUIDANCE.replace("{guidance}", guidance) if guidance is not None else ""
    length = LENGTH_RULE.format(limit=limit) if limit is not None else ""
    texts = "\n".join(protect)
    return section + length + (PROTECT_RULE.replace("{texts}", texts) if protect else "")
