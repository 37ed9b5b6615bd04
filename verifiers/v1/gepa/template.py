"""What the teacher is asked. The placeholders are filled in one pass, so a prompt or an example
that contains one is left alone."""

TEMPLATE = """\
You improve the system prompt of an assistant. Below are the prompt as it is now and examples of
what the assistant did with it: the input it got, the conversation, how it was scored, and, where
there is any, feedback on what was right or wrong.

The current system prompt:
<current_prompt>
{current_prompt}
</current_prompt>

The examples:
<examples>
{examples}
</examples>

Find out what the task really asks for and where the current prompt lets the assistant down. Take
from the feedback every rule, fact, format and convention that the assistant could not have known,
and state it in the new prompt so that it holds for inputs that you have not seen; don't write down
the examples themselves or their answers. Keep what already works.

First explain in a few sentences what you change and why. Then end your reply with the complete new
system prompt, ready to use as it stands, in one block that opens and closes with a line of four
backticks (````)."""
