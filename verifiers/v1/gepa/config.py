"""`GEPAConfig`: everything that a run can be told.

The config *is* the environment's config (it inherits `EnvConfig`), narrowed to the class of the env
that the ids name, so `--taskset.*` and `--agent.*` are typed and show in `-h`, and the object can
be handed to `load_environment` as it is.
"""

import functools
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal, Self, cast
from uuid import uuid4

from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    PrivateAttr,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_config import BaseConfig

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.client import ClientConfig
from verifiers.v1.gepa.settings.options import (
    EvaluationOptions,
    FaultOptions,
    LimitOptions,
    PriceOptions,
    PromptOptions,
    SearchOptions,
)
from verifiers.v1.gepa.settings.sampling import NamedSampling
from verifiers.v1.gepa.settings.settings import env_ids, fold_env, parsed, with_environment
from verifiers.v1.runtimes import PrimeConfig, SubprocessConfig
from verifiers.v1.utils.addresses import base_of, clients_of
from verifiers.v1.utils.json_option import JsonOption
from verifiers.v1.utils.texts import is_text

CONFIG_FILE = "configs/resolved/gepa.json"
"""Where a run keeps its resolved config, from the run directory on."""


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


class GEPAConfig(
    SearchOptions,
    PromptOptions,
    LimitOptions,
    PriceOptions,
    EvaluationOptions,
    FaultOptions,
    JsonOption,
    vf.EnvConfig,
):
    """One GEPA run: the environment, the models, the split, the budget."""

    narrowed: ClassVar[bool] = False
    """Whether this is the class made for one env (see `narrow`)."""

    model: str = Field("deepseek/deepseek-v4-flash", validation_alias=AliasChoices("model", "m"))
    """Model id of the student: the agent whose system prompt is optimized."""
    client: vf.EvalClientConfig = vf.EvalClientConfig()
    """Endpoint of the student."""
    task_endpoints: list[str] = Field(default_factory=list)
    """Base URLs of several replicas of the student's endpoint; each rollout stays on one."""
    sampling: NamedSampling = NamedSampling()
    """Sampling of the student."""
    reflection_model: str | None = None
    """Model id of the teacher, which reads traces and proposes prompts. None = `model`."""
    reflection_client: vf.EvalClientConfig | None = None
    """Endpoint of the teacher. None = the student's."""
    reflection_sampling: NamedSampling = NamedSampling()
    """Sampling of the teacher; only what is set here is sent."""

    phase: Literal["all", "optimize", "validate", "test"] = "all"
    """The phases to run: the search, the fresh comparison that picks the prompt, the comparison on
    the test tasks. `all` runs whatever the run has not done yet."""
    select: vf.SelectCLIConfig = vf.SelectCLIConfig()
    """Which of the taskset's tasks are used (`-n` limits, `-s` shuffles)."""
    num_train: int = Field(100, ge=1)
    """Tasks that the teacher's minibatches are drawn from."""
    num_val: int = Field(50, ge=1)
    """Tasks that every accepted prompt is scored on."""
    num_test: int = Field(50, ge=0)
    """Tasks set aside: nothing reads them during the search."""
    reflection_columns: list[str] = Field(default_factory=list)
    """Extra fields to show the teacher: keys of a trace's `info`, else fields of the task."""
    initial_prompt: str | None = None
    """System prompt to start from. None = the one that all tasks carry."""

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
    dry_run: bool = Field(False, exclude=True)
    """Check everything and write the resolved config, send nothing."""
    resume: bool = Field(False, exclude=True)
    """Go on with the run in the run directory: nothing that it measured is run again."""
    clean: bool = Field(False, exclude=True)
    """Delete the run directory first if it holds an earlier run."""

    _run_name_made_up: bool = PrivateAttr(False)
    _cut: dict[str, str] = PrivateAttr(default_factory=dict)

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
        if isinstance(value, BaseModel):
            value = value.model_dump(exclude_unset=True)
        if not isinstance(value, dict):
            return value
        return {key: parsed(item) for key, item in value.items()}

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
    def _cut_addresses(self) -> Self:
        """Base URLs as they are meant: people paste what they have."""
        for _, client in clients_of(self):
            if client.base_url != base_of(client.base_url):  # to set one says that it was given
                client.base_url = self._base_of(client.base_url)
        if self.task_endpoints:
            self.task_endpoints = [self._base_of(url) for url in self.task_endpoints]
        return self

    def _base_of(self, address: str) -> str:
        base, given = base_of(address), address.strip()
        if base != given:
            self._cut[given] = base
        return base

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
            self._run_name_made_up = self.run.dir is None
            harness = "+".join(dict.fromkeys(h.name for h in self.agent_harnesses().values()))
            parts = [self.env_id or "no-taskset", self.model, harness, uuid4().hex[:8]]
            slug = "--".join([part[:60] for part in parts])
            self.run.name = slug.replace("/", "--").lower()
        if self.run.dir is None:
            self.run.dir = self.run.name
        return self

    @property
    def run_name_made_up(self) -> bool:
        """Whether nobody has said which run this is: its directory is a new one."""
        return self._run_name_made_up

    @property
    def cut_addresses(self) -> dict[str, str]:
        """The addresses that were given with the route of a request -> their base URLs."""
        return self._cut

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
