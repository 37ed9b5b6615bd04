"""Raw settings, before they are a config: wherever they come from (flags, a file, Python), they are
made one flat block here. An `[env]` block means the same as the flat keys, and environment
variables fill what nothing else set.
"""

import json
from typing import Annotated, Any

from pydantic import field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

import verifiers.v1 as vf


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


def env_ids(data: dict[str, Any]) -> tuple[str, str]:
    """The taskset id and env id that raw settings name, flat or in an `env` block."""
    flat = fold_env(data)
    taskset = flat.get("taskset")
    ident = taskset.get("id") if isinstance(taskset, dict) else getattr(taskset, "id", "")
    return str(ident or ""), str(flat.get("id") or "")


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


def parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _sets_no(block: Any, key: str) -> bool:
    return block is None or (isinstance(block, dict) and block.get(key) is None)
