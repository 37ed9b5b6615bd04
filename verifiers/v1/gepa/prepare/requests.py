"""What goes out with every request, checked before the first: keys, addresses, parameters.

Each check raises `ConfigError` with one line that says what is wrong and what to do about it.
"""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.client import BaseClientConfig, TrainClientConfig, resolve_api_key
from verifiers.v1.configs.judge import JudgeConfig
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.faults.privacy import SECRET_NAME
from verifiers.v1.gepa.prepare.checks import ConfigError, file_named
from verifiers.v1.gepa.teacher.requests import LEAST_SHARE, chars_besides_examples
from verifiers.v1.judges.decision import DecisionJudgeConfig
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.addresses import clients_of, split_query

BARE = re.compile(r"(?=[^/]*[.:])[\w.-]+(?P<port>:\d+)?(/[\w./-]*)?")
"""A host that has a port or a domain, and perhaps a path."""


def check_secrets(config: GEPAConfig) -> None:
    """The config and every trace are written to files, with the clients' headers and URLs."""
    for url in config.task_endpoints:
        _check_url("task-endpoints", "client", url)
    for name, client in clients_of(config):
        flag = name.replace("_", "-")
        for header in client.headers:
            if SECRET_NAME.search(header):
                raise ConfigError(
                    f"--{flag}.headers holds {header!r}, whose value would be written to the run's "
                    "files: put it into an environment variable and name that with "
                    f"--{flag}.headers-from-env"
                )
        _check_url(f"{flag}.base-url", flag, client.base_url)
        _check_query(flag, client)
        key = resolve_api_key(client)
        if key != key.strip() or not key.isprintable():
            raise ConfigError(
                f"the key in {client.api_key_var} starts or ends with a blank or line break, which "
                "no HTTP header can hold: strip it"
            )


def check_guidance(config: GEPAConfig, seed_prompt: str) -> None:
    """The guidance must be a text, and leave the examples the room that is theirs."""
    guidance = config.reflection_guidance
    if guidance is None:
        return
    if name := file_named(guidance):
        raise ConfigError(
            f"--reflection-guidance takes a text, and {name} is a file: for what it holds, write "
            f"@{name}"
        )
    limit, taken = config.max_reflection_chars, chars_besides_examples(config, seed_prompt)
    if (left := max(limit - taken, 0)) < (least := limit // LEAST_SHARE):
        enough = LEAST_SHARE * (taken - 1) // (LEAST_SHARE - 1) + 1
        raise ConfigError(
            f"--reflection-guidance has {len(guidance)} characters: with the seed prompt "
            f"({len(seed_prompt)}) and what else a request says it leaves {left} of "
            f"--max-reflection-chars {limit} to the examples, which get at least {least}: shorten "
            f"it, or raise that to {enough}"
        )


def check_sampling(config: GEPAConfig) -> None:
    """Sampling passes on any key, also those that are the run's own part of a request: with these
    it would measure something else than it says, or fail in every rollout."""
    for flag, sampling, instead in _samplings(config):
        for name, value in (sampling.model_extra or {}).items():
            if "headers" in name:
                raise ConfigError(f"--{flag}.{name}: headers belong to the client, not to sampling")
            if name not in instead or value is None or _is_default(name, value):
                continue
            raise ConfigError(f"--{flag}.{name} is no sampling of this run: {instead[name]}")


def _samplings(config: GEPAConfig) -> Iterator[tuple[str, SamplingConfig, dict[str, str]]]:
    """Each block of sampling, its flag, and what to do instead of setting the keys that it can't
    hold."""
    common = {"stream": "leave it out, an answer is read as its reader needs it"}
    students = {
        "messages": "the conversation is the task's, and the prompt to start from is "
        "--initial-prompt",
        "n": "several rollouts are --rollouts-per-task",
    }
    yield "sampling", config.sampling, {**common, **students, "model": "choose it with --model"}
    for name, agent in agent_config_fields(config).items():
        if agent.sampling is not None:
            model = {"model": f"choose it with --{name}.model"}
            yield f"{name}.sampling", agent.sampling, {**common, **students, **model}
    teachers = {
        "messages": "the teacher's request is the run's, and --reflection-columns adds to it",
        "n": "several proposals are --proposals-per-iteration",
        "model": "choose it with --reflection-model",
    }
    yield "reflection-sampling", config.reflection_sampling, {**common, **teachers}


def _is_default(name: str, value: object) -> bool:
    """Whether it says what holds anyway."""
    if name == "stream":
        return value is False
    return name == "n" and not isinstance(value, bool) and value == 1


def eval_warnings(config: GEPAConfig) -> list[str]:
    """What `vf-eval`, which has no `Relay`, will send otherwise than this run does."""
    warnings = []
    if any(split_query(client.base_url)[1] for client in config.endpoints):
        warnings.append(
            "vf-eval can't evaluate the prompt at this endpoint: it puts the query of a base URL "
            "in front of the path"
        )
    if config.sampling.max_completion_tokens is not None:
        warnings.append(
            "vf-eval sends the limit of a reply as max_tokens: where the model refuses that, it "
            "can't evaluate the prompt"
        )
    return warnings


def check_limits(config: GEPAConfig) -> None:
    """A limit that leaves no room would end every rollout at once."""
    for agent_name, agent in agent_config_fields(config).items():
        for name in ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens"):
            limit = getattr(agent, name)
            if limit is not None and limit < 1:
                flag = f"{agent_name}.{name}".replace("_", "-")
                raise ConfigError(f"--{flag} {limit} allows nothing: give at least 1, or None")


def _check_url(option: str, client: str, address: str) -> None:
    try:
        url = urlsplit(address)
        reachable = url.scheme in ("http", "https") and url.hostname and url.port != 0
        reachable = reachable and address.isprintable() and not {" ", "#"} & {*address}
    except ValueError:
        reachable = False
    if not reachable:
        raise ConfigError(
            f"--{option} must be an address like {_with_scheme(address)}, with its scheme and host"
        )
    if url.username or url.password or SECRET_NAME.search(url.query):
        raise ConfigError(
            f"--{option} holds a key or password, which would be written to the run's files: send "
            f"it as a header named in --{client}.headers-from-env"
        )


def _with_scheme(address: str) -> str:
    """What was meant by an address that has all but its scheme, else any address."""
    bare = BARE.fullmatch(address)
    if bare is None:
        return "http://localhost:8000/v1"
    return f"{'http' if bare['port'] else 'https'}://{address}"


def _check_query(flag: str, client: BaseClientConfig) -> None:
    """Where requests are not ours to send, a query would end up in front of the path."""
    elsewhere = isinstance(client, TrainClientConfig) or (
        # This one is asked at its base URL itself.
        isinstance(client, JudgeConfig) and not isinstance(client, DecisionJudgeConfig)
    )
    if elsewhere and split_query(client.base_url)[1]:
        raise ConfigError(
            f"--{flag}.base-url has a query, which the host's client can't send behind the path of "
            "a request: only the student's and the teacher's endpoint can have one; put a proxy "
            "that adds it in front of this one"
        )
