"""`GEPAConfig`: everything that a run can be told.

The config *is* the environment's config (it inherits `EnvConfig`), narrowed to the class of the env
that the ids name, so `--taskset.*` and `--agent.*` are typed and show in `-h`, and the object can
be handed to `load_environment` as it is.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self, cast
from uuid import uuid4

from pydantic import PrivateAttr, create_model, model_validator

import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.client import ClientConfig
from verifiers.v1.gepa.settings.options import (
    EvaluationOptions,
    FaultOptions,
    LimitOptions,
    OutputOptions,
    PriceOptions,
    PromptOptions,
    ScoreOptions,
    SearchOptions,
    StartOptions,
    StudentOptions,
    TaskOptions,
    TeacherOptions,
)
from verifiers.v1.gepa.settings.settings import env_ids, fold_env, with_environment
from verifiers.v1.runtimes import PrimeConfig, SubprocessConfig
from verifiers.v1.utils.addresses import base_of, clients_of
from verifiers.v1.utils.json_option import JsonOption

CONFIG_FILE = "configs/resolved/gepa.json"
"""Where a run keeps its resolved config, from the run directory on."""


class GEPAConfig(
    # pydantic puts the fields of the last base first: from here up, the order of a run's options.
    StartOptions,
    OutputOptions,
    PriceOptions,
    FaultOptions,
    EvaluationOptions,
    LimitOptions,
    ScoreOptions,
    SearchOptions,
    TeacherOptions,
    PromptOptions,
    TaskOptions,
    StudentOptions,
    JsonOption,
    vf.EnvConfig,
):
    """One GEPA run: the environment, the models, the split, the budget."""

    narrowed: ClassVar[bool] = False
    """Whether this is the class made for one env (see `narrow`)."""

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
