"""The options of a run in groups, by what they are for; `GEPAConfig` inherits them all."""

from pathlib import Path, PurePath
from typing import Any, Literal, Self, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    FiniteFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_config import BaseConfig

import verifiers.v1 as vf
from verifiers.v1.configs.env import TimeoutConfig
from verifiers.v1.gepa.settings.guidance import guidance_text
from verifiers.v1.gepa.settings.sampling import NamedSampling
from verifiers.v1.gepa.settings.settings import parsed
from verifiers.v1.utils.texts import is_text


class NumberOptions(BaseConfig):
    """Options among which numbers are numbers: to Python, true is 1."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("must be a number, not true or false")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """The types that an annotation names."""
    return {annotation}.union(*(_kinds(part) for part in get_args(annotation)))


class EpisodeTimeout(NumberOptions, TimeoutConfig):
    """Seconds that an episode and its finalize hook may take. None = no limit."""

    episode: FiniteFloat | None = Field(1800.0, gt=0)
    """Seconds for an episode, which is a fault if it takes longer."""
    finalize: FiniteFloat | None = Field(None, gt=0)
    """Seconds for the env's finalize hook."""


class RunConfig(BaseConfig):
    """The run's name and where it writes."""

    name: str | None = None
    """Run name. Made up as `<taskset>--<model>--<harness>--<short id>` when unset."""
    dir: str | None = None
    """Directory of the run, from `output_dir` on. Defaults to `run.name`."""

    @field_validator("name")
    @classmethod
    def _stays_below(cls, value: str | None) -> str | None:
        """A name is a directory below `output_dir`; `dir` is the way to say another place."""
        if value is None:
            return value
        path = PurePath(value)
        if not value.strip() or not path.name or path.is_absolute() or ".." in path.parts:
            raise ValueError(
                "a run's name is that of a directory below --output-dir; name another place with "
                "--output-dir"
            )
        return value


def _typed(value: Any) -> Any:
    """Parameters that the host doesn't know come from flags as text: `top_k` 3 is a number."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if not isinstance(value, dict):
        return value
    return {key: parsed(item) for key, item in value.items()}


def _not_blank(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise ValueError("a model id can't be blank")
    return value


class StudentOptions(NumberOptions):
    """The model whose system prompt is optimized, and how its rollouts are run."""

    model: str = Field("deepseek/deepseek-v4-flash", validation_alias=AliasChoices("model", "m"))
    """Model id of the student: the agent whose system prompt is optimized."""
    client: vf.EvalClientConfig = vf.EvalClientConfig()
    """Endpoint of the student."""
    task_endpoints: list[str] = Field(default_factory=list)
    """Base URLs of several replicas of the student's endpoint; each rollout stays on one."""
    sampling: NamedSampling = NamedSampling()
    """Sampling of the student."""
    max_concurrent: int | None = Field(
        128, ge=1, validation_alias=AliasChoices("max_concurrent", "c")
    )
    """Rollouts in flight at once. None = 4096."""
    workers: int | None = Field(None, ge=1)
    """Processes on this machine that the episodes are spread over. None = they run in this one."""
    local: bool = False
    """Run every agent that names no harness and no runtime as a plain chat in this process
    (`direct-chat` in the subprocess runtime) instead of the host's default, a bash agent in a
    remote Prime sandbox."""

    _student_is_named = field_validator("model")(_not_blank)
    _student_is_sampled = field_validator("sampling", mode="before")(_typed)


class TaskOptions(NumberOptions):
    """The tasks of the search and of the phases after it."""

    select: vf.SelectCLIConfig = vf.SelectCLIConfig()
    """Which of the taskset's tasks are used (`-n` limits, `-s` shuffles)."""
    num_train: int = Field(100, ge=1)
    """Tasks that the teacher's minibatches are drawn from."""
    num_val: int = Field(50, ge=1)
    """Tasks that every accepted prompt is scored on."""
    num_test: int = Field(50, ge=0)
    """Tasks set aside: nothing reads them during the search."""


class PromptOptions(NumberOptions):
    """Where the search starts from, and what a prompt must be like."""

    initial_prompt: str | None = None
    """System prompt to start from. None = the one that all tasks carry."""
    max_prompt_chars: int | None = Field(None, ge=1)
    """Characters that a prompt may have. A longer proposal costs no rollout; the teacher knows the
    limit. None = no limit."""
    protect: list[str] = Field(default_factory=list)
    """Texts that must stay in the prompt, word for word. A proposal that lacks one costs no
    rollout; the teacher is told."""

    @field_validator("initial_prompt")
    @classmethod
    def _storable(cls, value: str | None) -> str | None:
        if value is not None and not is_text(value):
            raise ValueError("the prompt holds a lone surrogate, which has no UTF-8 form")
        return value


class TeacherOptions(NumberOptions):
    """The model that proposes prompts, and what it is shown."""

    reflection_model: str | None = None
    """Model id of the teacher, which reads traces and proposes prompts. None = `model`."""
    reflection_client: vf.EvalClientConfig | None = None
    """Endpoint of the teacher. None = the student's."""
    reflection_sampling: NamedSampling = NamedSampling()
    """Sampling of the teacher; only what is set here is sent."""
    reflection_columns: list[str] = Field(default_factory=list)
    """Extra fields to show the teacher: keys of a trace's `info`, else fields of the task."""
    reflection_guidance: str | None = None
    """Guidance for the teacher, part of every request: what you know about the task or want of the
    prompt (tone, language, what must not change). `@FILE` takes the text of a UTF-8 file."""
    max_reflection_chars: int = Field(100_000, ge=20_000)
    """Characters of a request to the teacher. The current prompt goes whole; the examples share the
    rest, at least a quarter of this, and lose the middle of what is long."""

    _teacher_is_named = field_validator("reflection_model")(_not_blank)
    _teacher_is_sampled = field_validator("reflection_sampling", mode="before")(_typed)
    _guidance_is_read = field_validator("reflection_guidance")(guidance_text)


class SearchOptions(NumberOptions):
    """How proposals are made, compared and kept."""

    seed: int = 0
    """Seed of the search (which prompt is mutated, on which tasks). The split doesn't depend on
    it."""
    reflection_minibatch_size: int = Field(3, ge=1)
    """Train tasks per proposal: run with the parent, shown to the teacher, run with the child."""
    proposals_per_iteration: int = Field(2, ge=1)
    """Proposals that are made and run side by side, each from a parent and a minibatch of its
    own."""
    parents_per_iteration: int | None = Field(None, ge=1)
    """Prompts that an iteration's proposals are shared among. None = each draws its own."""
    accepted_per_iteration: int | None = Field(1, ge=1)
    """At most so many of an iteration's proposals get a val pass, the largest gains. None = all
    that win their minibatch."""
    candidate_selection: Literal["pareto", "current_best", "epsilon_greedy", "top_k_pareto"] = (
        "pareto"
    )
    """How a parent is drawn: from the frontier, the more tasks it is best on the likelier; the best
    val mean; that one or, one time in ten, any; from the frontier's five best."""
    frontier_type: Literal["instance", "objective", "hybrid", "cartesian"] = "instance"
    """What the frontier keeps the best prompts of: val tasks, objectives, both, or the pairs."""
    objectives: list[str] = Field(default_factory=list)
    """The rewards and metrics that are objectives, more being better. None given = all."""
    acceptance: Literal["strict_improvement", "improvement_or_equal"] = "strict_improvement"
    """Whether a proposal must beat its parent on the minibatch, or may equal it."""
    merge: bool = False
    """gepa's merging of two candidates' texts. Always refused: a candidate has one text here, the
    system prompt, so a merge would be one of the two."""


class ScoreOptions(NumberOptions):
    """How many rollouts the search takes to score a prompt."""

    rollouts_per_task: int = Field(1, ge=1)
    """Rollouts that the search averages wherever it scores a prompt on a task, for noisy rewards.
    Each is charged."""
    reuse_rollouts: int | None = Field(None, ge=1)
    """Fresh rollouts of the search per prompt and task; after so many, they are taken from the
    run's record in turn, at no cost. None = always fresh."""
    stop_val_early: bool = False
    """End a val pass after its first half where the prompt could not reach its parent's val mean
    even with `perfect_score` on all of the rest; it is rejected."""
    perfect_score: FiniteFloat | None = None
    """The best score that a task can give, if there is one: stop when the val mean reaches it,
    propose nothing from a minibatch where every task has it, and end a proposal's minibatch after
    its first half where it can't win any more."""


class LimitOptions(NumberOptions):
    """What the search may spend, and what else ends it; a resume may change them."""

    max_total_rollouts: int = Field(500, ge=1)
    """Rollouts that the search may spend, a hard cap."""
    allow_small_budget: bool = False
    """Run even where the budget can't pay for the seed prompt's val pass and one full proposal."""
    max_reflections: int | None = Field(None, ge=1)
    """Stop after this many teacher calls."""
    max_tokens: int | None = Field(None, ge=1)
    """Stop before the iteration that starts with this many tokens spent by all roles together."""
    max_cost: FiniteFloat | None = Field(None, gt=0)
    """Stop before the iteration that starts with this many US dollars spent by all roles together.
    Every role needs a known price."""
    max_minutes: FiniteFloat | None = Field(None, gt=0)
    """Stop before the iteration that starts this long after the run (or its resume) did."""
    patience: int | None = Field(None, ge=1)
    """Stop after this many proposals in a row without a better val mean."""


class EvaluationOptions(NumberOptions):
    """The phases after the search."""

    num_finalists: int = Field(3, ge=1)
    """Prompts, besides the seed prompt, that the validate phase compares."""
    validation_rollouts: int = Field(1, ge=1)
    """Fresh rollouts per val task and prompt in the validate phase."""
    test_rollouts: int = Field(1, ge=1)
    """Rollouts per test task and prompt in the test phase."""
    evaluation_cache: Path | None = None
    """Directory where runs share the rollouts of the validate and test phases, so that several
    seeds evaluate the seed prompt once."""


class FaultOptions(NumberOptions):
    """What is done about failures."""

    max_attempts: int = Field(3, ge=1)
    """Attempts per rollout and per teacher call, where the failure may pass."""
    throttle_patience: FiniteFloat = Field(600.0, ge=0)
    """Seconds that one rollout or teacher call waits out an endpoint that says to slow down (429);
    such refusals are no failed attempts."""
    max_dropped_fraction: float = Field(0.1, ge=0, lt=1)
    """Share of a val pass, or of the tasks of a later phase, that may turn out impossible to
    measure before the run stops."""
    reflection_timeout: FiniteFloat | None = Field(600.0, gt=0)
    """Seconds that a teacher call may take. None = no limit."""
    timeout: EpisodeTimeout = EpisodeTimeout()
    """Wall-clock limits: an episode that takes longer is a fault and is tried again. The agent's
    own time budget is `agent.timeout.rollout`."""
    preflight: bool = True
    """Ask the endpoints before the first rollout whether they serve the models."""


class PriceOptions(NumberOptions):
    """What tokens cost, in US dollars per million; a resume may change it. Where it is not told,
    what the endpoint reports or the model's list price counts."""

    price_in: FiniteFloat | None = Field(None, ge=0)
    """US dollars per million input tokens of the student (and of the teacher, where that is the
    student)."""
    price_out: FiniteFloat | None = Field(None, ge=0)
    """US dollars per million output tokens of the student."""
    reflection_price_in: FiniteFloat | None = Field(None, ge=0)
    """US dollars per million input tokens of the teacher."""
    reflection_price_out: FiniteFloat | None = Field(None, ge=0)
    """US dollars per million output tokens of the teacher."""
    judge_price_in: FiniteFloat | None = Field(None, ge=0)
    """US dollars per million input tokens of the taskset's judges."""
    judge_price_out: FiniteFloat | None = Field(None, ge=0)
    """US dollars per million output tokens of the taskset's judges."""

    @model_validator(mode="after")
    def _in_pairs(self) -> Self:
        for role in ("", "reflection_", "judge_"):
            names = f"{role}price_in", f"{role}price_out"
            if len([name for name in names if getattr(self, name) is None]) == 1:
                flags = " and ".join(f"--{name.replace('_', '-')}" for name in names)
                raise ValueError(f"{flags} go together: give both")
        return self


class OutputOptions(NumberOptions):
    """Where the run writes, and what it shows."""

    run: RunConfig = RunConfig()
    """Run identity."""
    output_dir: Path = Field(Path("outputs"), validation_alias=AliasChoices("output_dir", "o"))
    """Directory that groups runs; the run writes to `output_dir / run.dir`."""
    save_results: bool = True
    """Write the run directory. Without it the prompt is only printed and returned."""
    rich: bool = True
    """Show a live view where the log goes to a terminal; else, plain log lines."""
    wandb: bool = False
    """Track the run with Weights & Biases, which must be installed (`verifiers-gepa[wandb]`)."""
    mlflow: bool = False
    """Track the run with MLflow, which must be installed (`verifiers-gepa[mlflow]`)."""
    verbose: bool = Field(False, validation_alias=AliasChoices("verbose", "v"))
    """Log at debug level."""


class StartOptions(NumberOptions):
    """What this start of the command does: all phases or one, with a new run or an old one."""

    phase: Literal["all", "optimize", "validate", "test"] = "all"
    """The phases to run: the search, the fresh comparison that picks the prompt, the comparison on
    the test tasks. `all` runs whatever the run has not done yet."""
    dry_run: bool = Field(False, exclude=True)
    """Check everything and write the resolved config, send nothing."""
    resume: bool = Field(False, exclude=True)
    """Go on with the run in the run directory: nothing that it measured is run again."""
    clean: bool = Field(False, exclude=True)
    """Delete the run directory first if it holds an earlier run."""
