"""The documentation against the sources: its tables, lists and links name what there is."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

import verifiers.v1 as vf
from tests.docs.test_commands import (
    DOCS,
    MESSAGES,
    NAMES,
    PAGES,
    ROOT,
    ROW,
    SCHEMA,
    SKILL,
    blocks,
    first_column,
    folder,
    section,
)
from verifiers.v1.gepa.command.sources import parse_config
from verifiers.v1.gepa.config import GEPAConfig, narrow
from verifiers.v1.gepa.dataset import seed_prompt, split_tasks
from verifiers.v1.gepa.prepare.identity import run_identity
from verifiers.v1.gepa.prepare.plan import load_env
from verifiers.v1.gepa.settings.settings import EnvironmentVariables
from verifiers_gepa.endpoint import Endpoint

__all__ = ["folder"]  # a fixture

HOME = ROOT / "verifiers/v1/gepa"


def leaves(name: str, info: FieldInfo) -> Iterator[tuple[str, str, str]]:
    """Name, short flag and default, as the tables have them, of a field and those inside it."""
    default = info.get_default(call_default_factory=True)
    if name == "agent.runtime":
        default = {"type": default.type}  # every type has options of its own
    if isinstance(default, BaseModel):
        for inner, field in type(default).model_fields.items():
            for path, short, _ in leaves(f"{name}.{inner}", field):
                yield path, short, rendered(default, path.removeprefix(f"{name}."))
        return
    alias = info.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else []
    short = next((f"-{choice}" for choice in choices if len(str(choice)) == 1), "")
    yield name, short, as_text(default)


def rendered(model: BaseModel, path: str) -> str:
    value: Any = model
    for key in path.split("."):
        value = getattr(value, key)
    return as_text({"type": value.type} if path == "runtime" else value)


def as_text(value: Any) -> str:
    return "None" if value is None else json.dumps(str(value) if isinstance(value, Path) else value)


@pytest.mark.parametrize(("title", "own"), [("The run", True), ("The environment", False)])
def test_the_tables_of_options_name_every_option_and_its_default(title: str, own: bool) -> None:
    run_fields = GEPAConfig.model_fields.keys() - vf.EnvConfig.model_fields.keys()
    expected = [
        leaf
        for name, info in narrow(GEPAConfig, "", "").model_fields.items()
        if (name in run_fields) == own
        for leaf in leaves(name, info)
    ]
    rows = ROW.findall(section(DOCS / "configuration.md", title))
    assert sorted((name, short, default) for name, short, _, default in rows) == sorted(expected)


def test_the_table_of_environment_variables() -> None:
    listed = first_column(section(DOCS / "configuration.md", "Environment variables"))
    assert listed == [name.upper() for name in EnvironmentVariables.model_fields]


def test_the_two_spellings_that_are_said_to_be_equal(folder: tuple[Path, Endpoint]) -> None:
    texts = [block for kind, block in blocks(DOCS / "configuration.md") if kind == "toml"]
    configs = []
    for number, text in enumerate(texts):
        file = folder[0] / f"{number}.toml"
        file.write_text(text, "utf-8")
        configs.append(parse_config(["@", str(file)])[0].model_dump(exclude={"run"}))
    assert len(configs) == 2
    assert configs[0] == configs[1]


PRICES = ("--price-in", "1", "--price-out", "2")

OTHERWISE: dict[str, tuple[str, ...]] = {
    "max_total_rollouts": ("300",),
    "allow_small_budget": (),
    "max_reflections": ("5",),
    "max_tokens": ("5",),
    "max_cost": ("5", *PRICES),
    "price_in": ("5", *PRICES[2:]),
    "price_out": ("5", *PRICES[:2]),
    "reflection_price_in": ("5", "--reflection-price-out", "1"),
    "reflection_price_out": ("5", "--reflection-price-in", "1"),
    "judge_price_in": ("5", "--judge-price-out", "1"),
    "judge_price_out": ("5", "--judge-price-in", "1"),
    "max_minutes": ("5",),
    "patience": ("5",),
    "client": (".base-url", "http://other/v1"),
    "task_endpoints": ("http://other/v1", "http://another/v1"),
    "reflection_client": (".base-url", "http://other/v1"),
    "agent.client": (".type", "eval", "--agent.client.base-url", "http://other/v1"),
    "phase": ("validate",),
    "num_finalists": ("5",),
    "validation_rollouts": ("2",),
    "test_rollouts": ("2",),
    "evaluation_cache": ("cache",),
    "max_concurrent": ("4",),
    "workers": ("2",),
    "max_concurrent_agents": ("2",),
    "interception": (".multiplex", "4"),
    "max_attempts": ("5",),
    "throttle_patience": ("5",),
    "max_dropped_fraction": ("0.5",),
    "timeout": (".episode", "5"),
    "reflection_timeout": ("5",),
    "retries": (".max-retries", "1"),
    "agent.retries": (".max-retries", "1"),
    "preflight": ("False",),
    "rich": ("False",),
    "wandb": (),
    "mlflow": (),
    "verbose": (),
    "json": (),
    "id": ("single-agent",),
    "taskset": (".path", str(MESSAGES)),
    "num_train": ("3",),
    "num_val": ("3",),
    "num_test": ("3",),
    "select": (".skip", "1"),
    "model": ("other",),
    "sampling": (".temperature", "0.5"),
    "agent.harness": (".id", "null"),
    "agent.runtime": (".type", "docker"),
    "agent.model": ("other",),
    "agent.sampling": (".temperature", "0.5"),
    "agent.max_turns": ("5",),
    "agent.timeout": (".rollout", "5"),
    "reflection_model": ("other",),
    "reflection_sampling": (".temperature", "0.5"),
    "reflection_columns": ("label",),
    "max_reflection_chars": ("50000",),
    "max_prompt_chars": ("50000",),
    "protect": ("Classify",),
    "reflection_guidance": ("Be polite.",),
    "initial_prompt": ("Classify.",),
    "taskset.system_prompt": ("configs/openai.toml",),
    "seed": ("1",),
    "reflection_minibatch_size": ("2",),
    "rollouts_per_task": ("2",),
    "reuse_rollouts": ("2",),
    "perfect_score": ("1",),
    "proposals_per_iteration": ("3",),
    "parents_per_iteration": ("1",),
    "accepted_per_iteration": ("2",),
    "candidate_selection": ("current_best",),
    "frontier_type": ("hybrid",),
    "objectives": ("reply_words",),
    "acceptance": ("improvement_or_equal",),
    "stop_val_early": (),
}
"""Another value than the default for every option that the lists of failures.md name: what follows
its flag."""


def identity(*flags: str) -> dict[str, Any]:
    """What a run with these flags must have in common with its resume."""
    sizes = [f"--num-{part}=4" for part in ("train", "val", "test") if f"--num-{part}" not in flags]
    config, _ = parse_config(["support-intent-v1", "-m", "student", *sizes, *flags])
    split = split_tasks(load_env(config).taskset, config)
    return run_identity(config, split, seed_prompt(split.tasks, config))


def test_what_may_change_on_a_resume_and_what_may_not(folder: tuple[Path, Endpoint]) -> None:
    text = section(DOCS / "failures.md", "Resuming a run")
    may, may_not = (
        re.findall(r"`([a-z_.]+)`", text.split(f"\n### {title}\n")[1].split("\n### ")[0])
        for title in ("What may change", "What may not")
    )
    may_not = [name for name in may_not if name != "identity.json" and "-" not in name]
    may_not = [name for name in may_not if name not in ("verifiers", "gepa")]
    assert sorted([*may, *may_not]) == sorted(OTHERWISE)
    same = identity()
    for name, (first, *rest) in {k: v or ("",) for k, v in OTHERWISE.items()}.items():
        flag = f"--{name.replace('_', '-')}"
        words = [flag + first, *rest] if first.startswith(".") else [flag, first, *rest]
        assert (identity(*filter(None, words)) == same) == (name in may), name


OTHER_ENDS = {"SIGINT", "SIGTERM", "killed", "fault"}


def test_the_table_of_finish_reasons() -> None:
    listed = first_column(section(DOCS / "failures.md", "Stop conditions"))
    asked = re.findall(r'yield "(\w+)"', (HOME / "search/stops.py").read_text("utf-8"))
    assert set(listed) == {*asked, "unusable_replies", "teacher_echoes", "ended"}
    page = section(DOCS / "outputs.md", "result.json")
    (row,) = (line for line in page.splitlines() if line.startswith("| `finish_reason`"))
    reasons = set(SCHEMA["properties"]["finish_reason"]["enum"])
    assert set(re.findall(r'`"(\w+)"`', row)) == {*listed, *OTHER_ENDS} == reasons


def test_the_page_on_no_improvement_names_every_hint_and_every_finish_reason() -> None:
    page = DOCS / "why-not-better.md"
    source = (HOME / "report/hints.py").read_text("utf-8")
    codes = re.findall(r'yield \(\s*"(\w+)"', source)
    assert sorted(first_column(section(page, "Read the hints"))) == sorted(codes)
    assert sorted(first_column(section(SKILL, "Act on a hint"))) == sorted(codes)
    reasons = SCHEMA["properties"]["finish_reason"]["enum"]
    assert sorted(first_column(section(page, "What the finish reason says"))) == sorted(reasons)


def messages() -> set[str]:
    """Every text of the sources, with `*` for what is filled in."""
    texts = set()
    for file in HOME.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "*" for p in node.values)
                texts.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
    return texts


def test_the_messages_that_are_explained_are_those_of_the_sources() -> None:
    known = messages()
    listed = first_column(section(DOCS / "failures.md", "Exit status and last line"))
    assert len(listed) == 12
    for message in listed:
        pattern = re.sub(r"\b[A-Z]+\b", "*", message)
        assert any(pattern in text for text in known), message


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in slugs, target
