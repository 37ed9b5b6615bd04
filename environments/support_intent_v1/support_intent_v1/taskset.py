"""The taskset `support-intent-v1`: customer messages in, `judge`'s rewards and feedback out."""

import glob
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

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
    # Importing it takes half a second, and reading a config or a trace needs none of it.
    from datasets import Features, Value, load_dataset

    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    # Without a schema, a text that looks like a date or a number would be read as one.
    features = Features({name: Value("string") for name in Row.model_fields})
    # Streamed, the only thing that `datasets` writes is a lock file.
    with TemporaryDirectory() as cache:
        try:
            records = list(
                load_dataset(
                    "json",
                    data_files=glob.escape(str(path)),
                    split="train",
                    features=features,
                    streaming=True,
                    cache_dir=cache,
                )
            )
        except ValueError as error:
            names = ", ".join(Row.model_fields)
            raise ValueError(f"{path} is not a JSONL file with the fields {names}") from error
    rows = []
    for number, record in enumerate(records, 1):
        try:
            rows.append(Row.model_validate(record))
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{path}, row {number}, {first['loc'][0]}: {first['msg']}") from error
    return rows
