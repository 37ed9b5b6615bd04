"""GEPA for verifiers v1: importing this package puts our modules in front of the host's.

`verifiers` is a regular package with a `v1/gepa` of its own, so ours can't be installed into its
folder. Instead, our tree is put first on the `__path__` of the packages in `MOUNTS`; from then on
`verifiers.v1.gepa` is this project, in this process, and everything else stays the host's.

Import from here, as `from verifiers_gepa import GEPAConfig, run_gepa`: without this import
`verifiers.v1.gepa` is the host's module, and no error says so. For the same reason an object of
ours must not travel to another process by pickle: it may load there as the host's class of that
name.

The mount takes about a millisecond; `verifiers.v1`, which takes seconds, is first imported when one
of the public names is used.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifiers.v1.gepa import (
        GEPAAdapter,
        GEPAConfig,
        GEPAError,
        Outcome,
        RunInterrupted,
        run_gepa,
    )

    __version__: str

__all__ = [
    "GEPAAdapter",
    "GEPAConfig",
    "GEPAError",
    "Outcome",
    "RunInterrupted",
    "__version__",
    "run_gepa",
]

MOUNTS = ("verifiers.v1", "verifiers.v1.cli", "verifiers.v1.utils")
"""The host's packages that our modules join."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("verifiers-gepa")
    if name in __all__:
        import verifiers.v1.gepa

        return getattr(verifiers.v1.gepa, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _MountFinder(MetaPathFinder):
    """Lets the other finders find a package of `MOUNTS`, then puts our folder first in its path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MOUNTS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.submodule_search_locations is not None:
                spec.submodule_search_locations.insert(0, str(_folder(fullname)))
                return spec
        return None


def _find_root() -> Path:
    """The folder that holds our `verifiers/`: `overlay/` in a wheel, the repository otherwise."""
    here = Path(__file__).resolve().parent
    for root in (here / "overlay", here.parent):
        # A `verifiers/` with an __init__.py is the host's, beside us in site-packages.
        if (root / "verifiers/v1/gepa").is_dir() and not (root / "verifiers/__init__.py").exists():
            return root
    raise ImportError(
        f"verifiers_gepa: no overlay beside {here}; the installation is incomplete, "
        "reinstall verifiers-gepa"
    )


def _folder(package: str) -> Path:
    return _ROOT.joinpath(*package.split("."))


def _refuse_host_modules() -> None:
    """Raise ImportError if a module that ours replaces was already imported from the host."""
    for package in MOUNTS:
        for path in _folder(package).glob("*"):
            name = f"{package}.{path.stem}"
            file = getattr(sys.modules.get(name), "__file__", None)
            if name in MOUNTS or file is None or Path(file).is_relative_to(_ROOT / "verifiers"):
                continue
            raise ImportError(
                f"verifiers_gepa replaces {name}, but verifiers' own was imported first, from "
                f"{file}; import verifiers_gepa before it, at the top of the program"
            )


def _mount() -> None:
    _refuse_host_modules()
    # A reload makes a new class: the finder is known by its name.
    finders = [f for f in sys.meta_path if type(f).__qualname__ != _MountFinder.__qualname__]
    sys.meta_path[:] = [_MountFinder(), *finders]
    for package in MOUNTS:
        imported, folder = sys.modules.get(package), str(_folder(package))
        if imported is not None and folder not in imported.__path__:
            imported.__path__.insert(0, folder)


_ROOT = _find_root()
_mount()
