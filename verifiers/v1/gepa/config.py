"""`GEPAConfig`: everything that a run can be told.

The config *is* the environment's config (it inherits `EnvConfig`), narrowed to the class of the env
that the ids name, so `--taskset.*` and `--agent.*` are typed and show in `-h`, and the object can
be handed to `load_environment` as it is. Wherever the settings come from (flags, a file, Python),
they are settled here in one place: an `[env]` block means the same as the flat keys, environment
variables fill what nothing else set, and the ids choose the class.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast
from uuid import uuid4

from pydantic import (
    AliasChoices,
    Field,
    FiniteFloat,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_config import BaseConfig
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.client import ClientConfig
from verifiers.v1.configs.env import TimeoutConfig
from verifiers.v1.runtimes import PrimeConfig, SubprocessConfig
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.texts import is_text


class EnvironmentVariables(BaseSettings):
    """What a run reads from the environment. Flags win over files, files over these."""

    model_config = SettingsConfigDict(env_ignore_empty=True)

    task_endpoints: Annotated[list[str], NoDecode] = []
    """`TASK_ENDPOINTS`: base URLs of the task model's replicas, comma separated."""
    vllm_base_url: str | None = None
    """`VLLM_BASE_URL`: the task model's base URL where `TASK_ENDPOINTS` is not set."""
    reflection_model_base_url: str | None = None
    """`REFLECTION_MODEL_BASE_URL`: the teacher's base URL."""
    reflection_model_id: str | None = None
    """`REFLECTION_MODEL_ID`: the teacher's model id."""

    @field_validator("task_endpoints", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [url for part in value.split(",") if (url := part.strip())]
        return value


class RunConfig(BaseConfig):
    """The run's name and where it writes."""

    name: str | None = None
    """Run name. Made up as `<taskset>--<model>--<harness>--<short id>` when unset."""
    dir: str | None = None
    """Directory of the run below `output_dir`. Defaults to `run.name`."""


class EpisodeTimeout(TimeoutConfig):
    """Seconds that an episode and its finalize hook may take. None = no limit."""

    episode: float | None = 1800.0


class GEPAConfig(vf.EnvConfig):
    """One GEPA run: the environment, the models, the split, the budget."""

    narrowed: ClassVar[bool] = False
    """Whether this is the class made for one env (see `narrow`)."""

    model: str = Field("deepseek/deepseek-v4-flash", validation_alias=AliasChoices("model", "m"))
    """Model id of the student: the agent whose system prompt is optimized."""
    client: vf.EvalClientConfig = vf.EvalClientConfig()
    """Endpoint of the student."""
    task_endpoints: list[str] = Field(default_factory=list)
    """Base URLs of several replicas of the student's endpoint; each rollout stays on one."""
    sampling: SamplingConfig = SamplingConfig()
    """Sampling of the student."""
    reflection_model: str | None = None
    """Model id of the teacher, which reads traces and proposes prompts. None = `model`."""
    reflection_client: vf.EvalClientConfig | None = None
    """Endpoint of the teacher. None = the student's."""
    reflection_sampling: SamplingConfig = SamplingConfig()
    """Sampling of the teacher; only what is set here is sent."""

    phase: Literal["all", "optimize", "validate", "test"] = "all"
    """The phases to run: the search, the fresh comparison that picks the prompt, the comparison on
    the test tasks. `all` runs whatever the run has not done yet."""
    num_finalists: int = Field(3, ge=1)
    """Prompts, besides the seed prompt, that the validate phase compares."""
    validation_rollouts: int = Field(1, ge=1)
    """Fresh rollouts per val task and prompt in the validate phase."""
    test_rollouts: int = Field(1, ge=1)
    """Rollouts per test task and prompt in the test phase."""
    rollouts_per_task: int = Field(1, ge=1)
    """Rollouts that the search averages wherever it scores a prompt on a task, for noisy rewards.
    Each is charged."""
    evaluation_cache: Path | None = None
    """Directory where runs share the rollouts of the validate and test phases, so that several
    seeds evaluate the seed prompt once."""

    select: vf.SelectCLIConfig = vf.SelectCLIConfig()
    """Which of the taskset's tasks are used (`-n` limits, `-s` shuffles)."""
    num_train: int = Field(100, ge=1)
    """Tasks that the teacher's minibatches are drawn from."""
    num_val: int = Field(50, ge=1)
    """Tasks that every accepted prompt is scored on."""
    num_test: int = Field(50, ge=0)
    """Tasks set aside: nothing reads them during the search."""
    seed: int = 0
    """Seed of the search (which prompt is mutated, on which tasks). The split doesn't depend on
    it."""

    max_total_rollouts: int = Field(500, ge=1)
    """Rollouts that the search may spend, a hard cap."""
    allow_small_budget: bool = False
    """Run even where the budget can't pay for the seed prompt's val pass and one full proposal."""
    reflection_minibatch_size: int = Field(3, ge=1)
    """Train tasks per proposal: run with the parent, shown to the teacher, run with the child."""
    reflection_columns: list[str] = Field(default_factory=list)
    """Extra fields to show the teacher: keys of a trace's `info`, else fields of the task."""
    initial_prompt: str | None = None
    """System prompt to start from. None = the one that all tasks carry."""

    max_reflections: int | None = Field(None, ge=1)
    """Stop after this many teacher calls."""
    max_tokens: int | None = Field(None, ge=1)
    """Stop before the iteration that starts with this many tokens spent by all roles together."""
    max_minutes: FiniteFloat | None = Field(None, gt=0)
    """Stop before the iteration that starts this long after the run (or its resume) did."""
    patience: int | None = Field(None, ge=1)
    """Stop after this many proposals in a row without a better val mean."""
    perfect_score: FiniteFloat | None = None
    """The best score that a task can give, if there is one: stop when the val mean reaches it, and
    propose nothing from a minibatch where every task has it."""

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
    max_concurrent: int | None = Field(
        128, ge=1, validation_alias=AliasChoices("max_concurrent", "c")
    )
    """Rollouts in flight at once. None = 4096."""
    local: bool = False
    """Run every agent that names no harness and no runtime as a plain chat in this process
    (`direct-chat` in the subprocess runtime) instead of the host's default, a bash agent in a
    remote Prime sandbox."""
    run: RunConfig = RunConfig()
    """Run identity."""
    output_dir: Path = Field(Path("outputs"), validation_alias=AliasChoices("output_dir", "o"))
    """Directory that groups runs; the run writes to `output_dir / run.dir`."""
    save_results: bool = True
    """Write the run directory. Without it the prompt is only printed and returned."""
    verbose: bool = Field(False, validation_alias=AliasChoices("verbose", "v"))
    """Log at debug level."""
    json_: bool = Field(False, validation_alias=AliasChoices("json", "json_"), exclude=True)
    """Print the object of result.json on one line instead of the prompt."""
    dry_run: bool = Field(False, exclude=True)
    """Check everything and write the resolved config, send nothing."""
    resume: bool = Field(False, exclude=True)
    """Go on with the run in the run directory: nothing that it measured is run again."""
    clean: bool = Field(False, exclude=True)
    """Delete the run directory first if it holds an earlier run."""

    def __new__(cls, *args: Any, **data: Any) -> Any:
        return super().__new__(cls if cls.narrowed else narrow(cls, *env_ids(data)))

    @model_validator(mode="wrap")
    @classmethod
    def _settle(cls, data: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(data, dict):
            return handler(data)
        data = with_environment(fold_env(data))
        if cls.narrowed:
            return handler(data)
        return narrow(cls, *env_ids(data)).model_validate(data)

    @field_validator("sampling", "reflection_sampling", mode="before")
    @classmethod
    def _typed(cls, value: Any) -> Any:
        """Parameters that the host doesn't know come from flags as text: `top_k` 3 is a number."""
        if not isinstance(value, dict):
            return value
        return {key: _parsed(item) for key, item in value.items()}

    @field_validator("model", "reflection_model")
    @classmethod
    def _named(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("a model id can't be blank")
        return value

    @field_validator("initial_prompt")
    @classmethod
    def _storable(cls, value: str | None) -> str | None:
        if value is not None and not is_text(value):
            raise ValueError("the prompt holds a lone surrogate, which has no UTF-8 form")
        return value

    @model_validator(mode="after")
    def _seat_locally(self) -> Self:
        if self.local:
            for name, agent in agent_config_fields(self).items():
                if agent.harness is None and agent.runtime == PrimeConfig():
                    harness = vf.harness_config_type("direct-chat")(id="direct-chat")
                    seat = {"harness": harness, "runtime": SubprocessConfig()}
                    setattr(self, name, agent.model_copy(update=seat))
        return self

    @model_validator(mode="after")
    def _name_run(self) -> Self:
        if self.run.name is None:
            harness = "+".join(dict.fromkeys(h.name for h in self.agent_harnesses().values()))
            parts = [self.env_id or "no-taskset", self.model, harness, uuid4().hex[:8]]
            slug = "--".join([part[:60] for part in parts])
            self.run.name = slug.replace("/", "--").lower()
        if self.run.dir is None:
            self.run.dir = self.run.name
        return self

    @property
    def run_dir(self) -> Path:
        """Where the run writes."""
        assert self.run.dir is not None
        return self.output_dir / self.run.dir

    @property
    def endpoints(self) -> list[ClientConfig]:
        """The student's endpoints, one per replica; the agent's own where it names one."""
        own = [agent.client for agent in agent_config_fields(self).values() if agent.client]
        if own:
            return [*own]
        urls = self.task_endpoints or [self.client.base_url]
        return [self.client.model_copy(update={"base_url": url}) for url in urls]

    @property
    def student(self) -> str:
        """Model id of the student: the agent's own where it names one."""
        own = [agent.model for agent in agent_config_fields(self).values() if agent.model]
        return own[0] if own else self.model

    @property
    def teacher(self) -> tuple[str, vf.EvalClientConfig]:
        """Model id and endpoint of the teacher: where none is named, the student's."""
        own = self.endpoints[0]
        students = own if isinstance(own, vf.EvalClientConfig) else self.client
        return self.reflection_model or self.student, self.reflection_client or students


def env_ids(data: dict[str, Any]) -> tuple[str, str]:
    """The taskset id and env id that raw settings name, flat or in an `env` block."""
    flat = fold_env(data)
    taskset = flat.get("taskset")
    ident = taskset.get("id") if isinstance(taskset, dict) else getattr(taskset, "id", "")
    return str(ident or ""), str(flat.get("id") or "")


@functools.cache
def narrow(base: type[GEPAConfig], taskset_id: str, env_id: str) -> type[GEPAConfig]:
    """`base` with the fields of the env that the ids name (the single-agent env where they name
    none) and the taskset's own options. Raises what the host's loaders raise for an unknown id."""
    env_type = vf.env_config_type(taskset_id, env_id)
    own = set(GEPAConfig.model_fields) - set(vf.EnvConfig.model_fields)
    if clash := own & set(env_type.model_fields):
        raise ValueError(
            f"{env_type.__name__} has fields named like a run's own: {', '.join(sorted(clash))}"
        )
    fields: dict[str, Any] = {}
    if taskset_id:
        taskset_type = vf.taskset_config_type(taskset_id)
        fields["taskset"] = (taskset_type, taskset_type(id=taskset_id))
    if env_id:
        fields["id"] = (str, env_id)
    narrowed = create_model(base.__name__, __base__=(base, env_type), __module__=__name__, **fields)
    made = cast("type[GEPAConfig]", narrowed)
    made.narrowed = True
    return made


ALIASES = {"m": "model", "c": "max_concurrent", "o": "output_dir", "v": "verbose"}


def fold_env(data: dict[str, Any]) -> dict[str, Any]:
    """Raw settings with their `env` block merged into the flat keys and short names spelled out.
    Raises `ValueError` where one setting is given in two ways with different values, or a block is
    no block."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if key != "env":
            flat = _merge(flat, {ALIASES.get(key, key): value}, (), "")
    block = data.get("env")
    if isinstance(block, vf.EnvConfig):
        block = block.model_dump(exclude_unset=True)
    if block is not None:
        if not isinstance(block, dict):
            raise ValueError("env must be a block of settings")
        block = {ALIASES.get(key, key): value for key, value in block.items()}
        flat = _merge(flat, block, (), "env.")
    for name in ("taskset", "agent"):
        if isinstance(flat.get(name), str | int | float | list):
            raise ValueError(f"{name} must be a block of settings, like {name}.id")
    return flat


def _merge(
    flat: dict[str, Any], block: dict[str, Any], path: tuple[str, ...], prefix: str
) -> dict[str, Any]:
    merged = dict(flat)
    for key, value in block.items():
        here = (*path, key)
        if key not in merged:
            merged[key] = value
        elif isinstance(value, dict) and isinstance(merged[key], dict):
            merged[key] = _merge(merged[key], value, here, prefix)
        elif merged[key] != value:
            name = ".".join(here)
            raise ValueError(
                f"{name} is set twice, with different values: {merged[key]!r} as {name} and "
                f"{value!r} as {prefix}{name}; drop one"
            )
    return merged


def with_environment(data: dict[str, Any]) -> dict[str, Any]:
    """Raw settings with what the environment variables add: an endpoint or teacher that nothing
    else set."""
    env = EnvironmentVariables()
    data = dict(data)
    urls = env.task_endpoints or ([env.vllm_base_url] if env.vllm_base_url else [])
    if urls and not data.get("task_endpoints") and _sets_no(data.get("client"), "base_url"):
        data["client"] = {**(data.get("client") or {}), "base_url": urls[0]}
        if len(urls) > 1:
            data["task_endpoints"] = urls
    elif data.get("task_endpoints") and _sets_no(data.get("client"), "base_url"):
        first = next(iter(data["task_endpoints"]))
        data["client"] = {**(data.get("client") or {}), "base_url": first}
    url = env.reflection_model_base_url
    if url and _sets_no(data.get("reflection_client"), "base_url"):
        data["reflection_client"] = {**(data.get("reflection_client") or {}), "base_url": url}
    teacher = (env.reflection_model_id or "").strip()
    if teacher and data.get("reflection_model") is None:
        data["reflection_model"] = teacher
    return data


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _sets_no(block: Any, key: str) -> bool:
    return block is None or (isinstance(block, dict) and block.get(key) is None)
