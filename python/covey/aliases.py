# SPDX-License-Identifier: Apache-2.0
"""covey's buffers under the names by which frameworks import those of other libraries, in processes that ask for it.

    COVEY_AS=nixl_ep,deep_ep vllm serve ...        # install() is a plugin of vLLM and of SGLang

Without COVEY_AS nothing happens: no name of another project is ever installed.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Dict, Iterable, Optional

# Module of another library -> module of covey whose public names it gets; None: an empty package.
_MODULES: Dict[str, Dict[str, Optional[str]]] = {
    "nixl_ep": {"nixl_ep": "covey.ep.buffer", "nixl_ep.buffer": "covey.ep.buffer", "nixl_ep.utils": "covey.ep._event"},
    "deep_ep": {"deep_ep": "covey.ep.deep_ep", "deep_ep.utils": "covey.ep._event", "deep_ep.buffer": "covey.ep.deep_ep",
                "deep_ep.utils.event": "covey.ep._event"},
    "mooncake": {"mooncake": None, "mooncake.pg": "covey.compat.mooncake", "mooncake.ep": "covey.compat.mooncake",
                 "mooncake.mooncake_ep_buffer": "covey.ep.mooncake"},
}


class _Loader(importlib.abc.Loader):
    """Fills a module with the public names of one of covey, which is imported then and not before."""

    def __init__(self, target: Optional[str]):
        self._target = target

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self._target is None:
            return
        target = importlib.import_module(self._target)
        if hasattr(target, "install"):  # the names of a process group's backends
            target.install()
        for name, value in vars(target).items():
            if not name.startswith("_") and not isinstance(value, ModuleType):
                setattr(module, name, value)
        module.__doc__ = f"{self._target} under another name: COVEY_AS asks for it."


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the names that were asked for."""

    def __init__(self) -> None:
        self.modules: Dict[str, Optional[str]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name not in self.modules:
            return None
        found = self.modules[name]
        if found is None:  # other modules of a package that is installed stay what they are
            real = PathFinder.find_spec(name, path)
            if real is not None:
                return real
        return importlib.util.spec_from_loader(name, _Loader(found), is_package=True)


_finder = _Finder()


def install(names: Optional[Iterable[str]] = None) -> None:
    """Imports of @names give covey's modules from here on.

    Args:
        names: of "nixl_ep", "deep_ep" and "mooncake"; None: those of COVEY_AS, separated by commas
    """
    if names is None:
        names = [name.strip() for name in os.environ.get("COVEY_AS", "").split(",") if name.strip()]
    for name in names:
        if name not in _MODULES:
            raise ValueError(f"COVEY_AS has {name!r}: it may have {', '.join(_MODULES)}, separated by commas")
        for module, target in _MODULES[name].items():
            _refuse_imported(module, target)
        _finder.modules.update(_MODULES[name])
    if _finder.modules and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _refuse_imported(name: str, target: Optional[str]) -> None:
    """Code that has the other library already would keep it."""
    there = sys.modules.get(name)
    spec = getattr(there, "__spec__", None)
    if target is not None and there is not None and not isinstance(getattr(spec, "loader", None), _Loader):
        raise RuntimeError(f"{name} is imported already, from {getattr(there, '__file__', 'elsewhere')}: call "
                           "covey.aliases.install() before, or leave it out of COVEY_AS")
