"""The distribution: what is in it, and that it joins an installed verifiers without touching it.

The wheel is installed into an empty virtual environment that sees the packages of the one that runs
the tests, but not this repository.
"""

import hashlib
import importlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import verifiers_gepa

# On one worker, so that the wheel is built once.
pytestmark = pytest.mark.xdist_group("packaging")

REPOSITORY = Path(__file__).resolve().parents[1]
ENVIRONMENTS = REPOSITORY / "environments"
SOURCES = {
    "verifiers_gepa": REPOSITORY / "verifiers_gepa",
    "verifiers_gepa/overlay/verifiers": REPOSITORY / "verifiers",
    "direct_chat": ENVIRONMENTS / "direct_chat/direct_chat",
    "support_intent_v1": ENVIRONMENTS / "support_intent_v1/support_intent_v1",
}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(target: str, project: Path, out: Path) -> Path:
    """Build a distribution with the backend that is installed, so without a network."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out, cwd=project)
    (built,) = out.iterdir()
    return built


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def files_under(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pyi" and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix()


class Installed:
    """A virtual environment with the wheel in it."""

    def __init__(self, root: Path) -> None:
        venv.create(root, with_pip=False, symlinks=True)
        self.root = root
        self.python = root / "bin/python"
        paths = {"base": str(root), "platbase": str(root)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", paths))
        # A folder named by a .pth file is searched, but its own .pth files, among them that of an
        # editable install of this repository, are not read.
        (self.packages / "parent.pth").write_text(sysconfig.get_path("purelib"))

    def pip(self, *arguments: str | Path) -> None:
        options = ("--python", self.python, "--quiet", "--disable-pip-version-check")
        run(sys.executable, "-m", "pip", *options, *arguments, cwd=self.root)

    def install(self, wheel: Path) -> None:
        # The parent's verifiers-gepa must not count as installed.
        self.pip("install", "--no-deps", "--no-index", "--ignore-installed", "--no-compile", wheel)

    def report(self, script: str) -> Any:
        """What a script, run outside the repository, prints as JSON."""
        return json.loads(run(self.python, "-I", "-c", script, cwd=self.root))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", REPOSITORY, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    environment = Installed(tmp_path_factory.mktemp("installed"))
    environment.install(wheel)
    return environment


def host_root() -> Path:
    spec = find_spec("verifiers")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parent


def test_the_wheel_holds_the_sources_and_nothing_else(wheel: Path) -> None:
    names = names_in(wheel)
    assert names == {
        f"{place}/{name}" for place, folder in SOURCES.items() for name in files_under(folder)
    }
    assert {
        "verifiers_gepa/py.typed",
        "verifiers_gepa/overlay/verifiers/v1/gepa/__init__.py",
        "verifiers_gepa/overlay/verifiers/v1/cli/gepa.py",
        "direct_chat/__init__.py",
        "support_intent_v1/__init__.py",
    } <= names
    assert any(name.startswith("support_intent_v1/") and name.endswith(".jsonl") for name in names)


def test_an_editable_install_reads_the_repository(tmp_path: Path) -> None:
    script = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    run(sys.executable, "-c", script, tmp_path, cwd=REPOSITORY)
    (wheel,) = tmp_path.iterdir()
    (pth,) = names_in(wheel)
    with zipfile.ZipFile(wheel) as archive:
        roots = archive.read(pth).decode().splitlines()
    assert [Path(root) for root in roots] == [
        REPOSITORY,
        ENVIRONMENTS / "direct_chat",
        ENVIRONMENTS / "support_intent_v1",
    ]


def test_the_sdist_can_be_built_and_tested(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", REPOSITORY, tmp_path)) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "verifiers/v1/__init__.pyi",
        "verifiers/v1/gepa/__init__.py",
        "configs/quickstart.toml",
        "environments/echo_v1/pyproject.toml",
        "environments/echo_v1/echo_v1/data.jsonl",
        "tests/conftest.py",
        "CONTRIBUTING.md",
        ".ci/run",
        ".github/workflows/ci.yml",
        ".pre-commit-config.yaml",
    } <= names


@pytest.mark.parametrize("package", ["echo_v1", "reverse_text_v1", "gsm8k_v1"])
def test_a_taskset_ships_its_data(package: str, tmp_path: Path) -> None:
    names = names_in(build("wheel", ENVIRONMENTS / package, tmp_path))
    assert names == {f"{package}/{name}" for name in files_under(ENVIRONMENTS / package / package)}
    assert f"{package}/data.jsonl" in names


def test_only_the_modules_that_are_meant_replace_the_hosts() -> None:
    def modules(folder: Path) -> set[str]:
        paths = [path for path in folder.glob("*") if path.suffix == ".py" or path.is_dir()]
        return {path.stem for path in paths} - {"__init__", "__pycache__"}

    replaced = {
        folder: modules(REPOSITORY / folder) & modules(host_root().parent / folder)
        for folder in ("verifiers/v1", "verifiers/v1/cli", "verifiers/v1/utils")
    }
    assert replaced == {
        "verifiers/v1": {"gepa", "cli", "utils"},  # the last two are joined, not replaced
        "verifiers/v1/cli": {"gepa"},
        "verifiers/v1/utils": set(),
    }


def test_the_mount_puts_our_modules_in_front(installed: Installed) -> None:
    seen = installed.report("""
import importlib, json, sys
import verifiers_gepa

light = "verifiers" not in sys.modules

from verifiers_gepa import GEPAAdapter, GEPAConfig, run_gepa
import direct_chat, support_intent_v1
import verifiers.v1.cli.gepa, verifiers.v1.cli.output, verifiers.v1.utils.loaders

public = [sys.modules[it.__module__].__file__ for it in (GEPAAdapter, GEPAConfig, run_gepa)]
names = ["verifiers.v1.gepa", "verifiers.v1.cli.gepa", "direct_chat", "support_intent_v1",
         "verifiers.v1.taskset", "verifiers.v1.cli.output", "verifiers.v1.utils.loaders"]
mounts = ["verifiers.v1", "verifiers.v1.cli", "verifiers.v1.utils"]
importlib.reload(verifiers_gepa)
print(json.dumps({
    "light": light,
    "public": public,
    "files": {name: sys.modules[name].__file__ for name in names},
    "paths": {name: list(sys.modules[name].__path__) for name in mounts},
    "finders": sum(type(finder).__name__ == "_MountFinder" for finder in sys.meta_path),
}))
""")
    assert seen["light"]
    packages = installed.packages.resolve()
    overlay = packages / "verifiers_gepa/overlay"
    host = host_root().parent
    assert all(Path(file).is_relative_to(overlay / "verifiers/v1/gepa") for file in seen["public"])
    assert {name: Path(file).resolve() for name, file in seen["files"].items()} == {
        "verifiers.v1.gepa": overlay / "verifiers/v1/gepa/__init__.py",
        "verifiers.v1.cli.gepa": overlay / "verifiers/v1/cli/gepa.py",
        "direct_chat": packages / "direct_chat/__init__.py",
        "support_intent_v1": packages / "support_intent_v1/__init__.py",
        "verifiers.v1.taskset": host / "verifiers/v1/taskset.py",
        "verifiers.v1.cli.output": host / "verifiers/v1/cli/output.py",
        "verifiers.v1.utils.loaders": host / "verifiers/v1/utils/loaders.py",
    }
    # Once each, also after the reload.
    for name, paths in seen["paths"].items():
        here = Path(*name.split("."))
        assert [Path(path).resolve() for path in paths] == [overlay / here, host / here]
    assert seen["finders"] == 1


def test_the_hosts_command_is_its_own_and_importing_it_first_is_refused(
    installed: Installed,
) -> None:
    seen = installed.report("""
import json, sys
from importlib.metadata import entry_points

(command,) = entry_points(group="console_scripts", name="vf-gepa")
host = command.load().__code__.co_filename
try:
    import verifiers_gepa
except ImportError as error:
    refusal = str(error)
for name in [name for name in sys.modules if ".gepa" in name]:
    del sys.modules[name]

import verifiers_gepa
import verifiers.v1.gepa

print(json.dumps({"host": host, "refusal": refusal, "then": verifiers.v1.gepa.__file__}))
""")
    assert Path(seen["host"]).resolve() == host_root() / "v1/cli/gepa.py"
    assert seen["refusal"].startswith("verifiers_gepa replaces verifiers.v1.")
    assert str(host_root() / "v1") in seen["refusal"]
    assert seen["refusal"].endswith("import verifiers_gepa before it, at the top of the program")
    overlay = installed.packages.resolve() / "verifiers_gepa/overlay"
    assert Path(seen["then"]) == overlay / "verifiers/v1/gepa/__init__.py"


def test_the_version_is_told_without_importing_the_host(installed: Installed) -> None:
    told = f"verifiers-gepa {version('verifiers-gepa')}\n"
    assert run(installed.root / "bin/gepa", "--version", cwd=installed.root) == told
    script = """
import json, sys
from verifiers_gepa.__main__ import main

sys.argv, out, sys.stdout = ["gepa", "--version"], sys.stdout, sys.stderr
status = main()
print(json.dumps([status, "verifiers" in sys.modules]), file=out)
"""
    assert installed.report(script) == [0, False]


def test_the_hosts_files_are_as_they_were_shipped() -> None:
    shipped = [file for file in distribution("verifiers").files or [] if file.hash]
    assert any(file.as_posix() == "verifiers/v1/gepa/runner.py" for file in shipped)
    for file in shipped:
        assert file.hash is not None
        digest = hashlib.new(file.hash.mode, Path(str(file.locate())).read_bytes()).digest()
        assert urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value, file


def test_uninstalling_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    environment = Installed(tmp_path)
    before = set(tmp_path.rglob("*"))
    environment.install(wheel)
    assert set(tmp_path.rglob("*")) > before
    environment.pip("uninstall", "--yes", "verifiers-gepa")
    assert set(tmp_path.rglob("*")) == before


def test_an_installation_without_its_overlay_says_so(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "verifiers_gepa", tmp_path / "verifiers_gepa")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import verifiers_gepa"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "the installation is incomplete, reinstall verifiers-gepa" in done.stderr


def test_public_names() -> None:
    assert verifiers_gepa.__version__ == version("verifiers-gepa")
    gepa = importlib.import_module("verifiers.v1.gepa")
    for name in ("GEPAAdapter", "GEPAConfig", "GEPAError", "Outcome", "RunInterrupted", "run_gepa"):
        assert getattr(verifiers_gepa, name) is getattr(gepa, name)
    with pytest.raises(AttributeError, match="'verifiers_gepa' has no attribute 'nothing'"):
        _ = verifiers_gepa.nothing
