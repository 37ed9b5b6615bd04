"""Grade-school word problems whose answer is a whole number.

The instructions are part of the prompt and there is no system prompt, so optimizing one starts
from `--initial-prompt`.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import verifiers.v1 as vf

BUNDLED = Path(__file__).with_name("data.jsonl")
HUB = ("openai/gsm8k", "main")
INSTRUCTIONS = (
    "Work the problem out step by step. Finish with the answer as a plain number, without a unit, "
    "in \\boxed{}."
)

MAX_ANSWER_LENGTH = 80
NUMERIC = re.compile(
    r"(?:[a-zA-Z]\s*=)?"
    r"(?:[\d\s.,:+/$%€£(){}-]"
    r"|\\(?:[dt]?frac|times|cdot|div|left|right)(?![a-zA-Z])"
    r"|\\(?:text|textbf|mathrm|mathbf)\{[^{}]*\}"
    r"|\\[$%,;: ])*"
)
"""What a number may look like in LaTeX, as a sum or fraction and with a unit in `\\text` too."""

# It warns once that its time limits are off, which `is_correct` makes up for.
logging.getLogger("math_verify").setLevel(logging.ERROR)


class GSM8KData(vf.TaskData):
    """One problem: the instructions and the question in `prompt`."""

    prompt: str
    answer: str
    """The expected answer, a whole number in digits."""


class GSM8KTask(vf.Task[GSM8KData]):
    """Scored 1 for the right number in the reply's last box and 0 for anything else."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        """1.0 if the last reply boxes the expected number; the feedback says why not."""
        answer, boxed = self.data.answer, boxed_answer(trace.last_reply)
        correct = is_correct(boxed, answer)
        trace.info["feedback"] = explain(boxed, answer, correct)
        return float(correct)


class GSM8KConfig(vf.TasksetConfig):
    source: Literal["bundled", "hub"] = "bundled"
    """Where the problems come from: the 66 that ship with the package, or the training split of
    `openai/gsm8k` on the Hugging Face hub."""


class GSM8KTaskset(vf.Taskset[GSM8KTask, GSM8KConfig]):
    def load(self) -> Iterator[GSM8KTask]:
        """Raises ConnectionError if the hub is asked for and can't be reached."""
        # Here, because reading the options of the taskset must not cost the import.
        from datasets import load_dataset

        if self.config.source == "hub":
            rows = load_dataset(*HUB, split="train")
        else:
            rows = load_dataset("json", data_files=str(BUNDLED), split="train")
        for row in rows:
            data = GSM8KData(
                id=row.get("id"),
                prompt=f"{INSTRUCTIONS}\n\n{row['question']}",
                answer=final_number(row["answer"]),
            )
            yield GSM8KTask(data, self.config.task)


def final_number(solution: str) -> str:
    """The number at the end of a solution: GSM8K's own end in `#### 1,234`."""
    return solution.rsplit("####", 1)[-1].strip().replace(",", "")


def boxed_answer(reply: str) -> str:
    """What the last `\\boxed{}` holds, thinking aside; empty if there is none or it is unclosed."""
    if "<think>" in reply and "</think>" not in reply:
        return ""
    return vf.extract_boxed_answer(reply.rsplit("</think>", 1)[-1], strict=True).strip()


def is_correct(boxed: str, answer: str) -> bool:
    """Whether math-verify takes the two for the same number.

    Its time limits are signals, which reach the main thread only and don't interrupt a long
    integer operation, so they are off. Instead only text that `NUMERIC` allows is given to it:
    without powers, factorials or functions no comparison takes long.
    """
    if len(boxed) > MAX_ANSWER_LENGTH or not NUMERIC.fullmatch(boxed):
        return False
    score: float = vf.verify_boxed_math_answer(f"\\boxed{{{boxed}}}", answer, timeout_seconds=0)
    return score == 1.0


def explain(boxed: str, answer: str, correct: bool) -> str:
    """What was right or wrong with an answer, for whoever improves the prompt."""
    if correct:
        return "Correct."
    if not boxed:
        return f"Wrong: the reply has no answer in \\boxed{{}}. The answer is {answer}."
    return f"Wrong: the reply's answer is {boxed}. The answer is {answer}."
