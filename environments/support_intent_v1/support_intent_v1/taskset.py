"""The taskset `support-intent-v1`: customer messages in, `judge`'s rewards and feedback out."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import verifiers.v1 as vf
from support_intent_v1.house import Label, TieBreak, judge

MESSAGES = Path(__file__).with_name("messages.jsonl")

SEED_PROMPT = "Classify the customer's message by intent."
"""States none of the house rules; finding them is the exercise."""


class Row(BaseModel):
    """One line of the JSONL file."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    text: str = Field(min_length=1)
    label: Label
    rule: TieBreak | None = None
    """The tie-break that decides the label, if the message fits two."""
    other: Label | None = None
    """The label that the tie-break rejects."""


class SupportIntentConfig(vf.TasksetConfig):
    path: Path | None = None
    """A JSONL file to read instead of the bundled one: an object with `text` and `label` a line,
    and `rule`, `other` and `id` where they apply."""


class SupportIntentData(vf.TaskData):
    label: Label
    rule: TieBreak | None = None
    other: Label | None = None


class SupportIntentTask(vf.Task[SupportIntentData]):
    @vf.reward
    async def house_style(self, trace: vf.Trace) -> dict[str, float]:
        verdict = judge(trace.last_reply, self.data.label, self.data.rule, self.data.other)
        trace.info["feedback"] = verdict.feedback
        return verdict.rewards

    @vf.metric
    async def reply_words(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply.split()))


class SupportIntentTaskset(vf.Taskset[SupportIntentTask, SupportIntentConfig]):
    def load(self) -> Iterator[SupportIntentTask]:
        for row in read_rows(self.config.path or MESSAGES):
            yield SupportIntentTask(
                SupportIntentData(
                    id=row.id,
                    prompt=row.text,
                    system_prompt=SEED_PROMPT,
                    label=row.label,
                    rule=row.rule,
                    other=row.other,
                ),
                self.config.task,
            )


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL file, in its order.

    Raises FileNotFoundError if there is no such file and ValueError, which names the file and the
    row (counted from 1), if what it holds are not rows of this taskset.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(Row.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = f", {first['loc'][0]}" if first["loc"] else ""
            raise ValueError(f"{path}, row {number}{where}: {first['msg']}") from error
    if not rows:
        raise ValueError(f"{path} holds no row with the fields {', '.join(Row.model_fields)}")
    return rows
