"""Set before anything else is imported: our modules in front of the host's, and no outside world.

Nothing a person has on their machine may reach a test: no keys or endpoints from the environment,
no `~/.prime`, no Hugging Face hub.
"""

import os
import tempfile

FOREIGN = (
    *("PRIME_", "OPENAI_", "VLLM_", "REFLECTION_", "TASK_ENDPOINTS", "VF_", "HF_"),
    *("MAKE", "MFLAGS"),  # set where make runs the tests; a make that a test runs would obey them
)
for name in [name for name in os.environ if name.startswith(FOREIGN)]:
    del os.environ[name]
# Kept as an object, so that the folder is removed when the process ends.
HOME = tempfile.TemporaryDirectory(prefix="verifiers-gepa-tests-")
os.environ["HOME"] = HOME.name
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest  # noqa: E402

import verifiers_gepa  # noqa: E402, F401

LONGEST = ("test_benchmarks.py", "test_process.py", "test_phases.py", "test_workers.py")
"""The files that take the longest. They begin first, so that no process is left alone with one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)
