# SPDX-License-Identifier: Apache-2.0
"""A client on tensors of the host, with the modules of it that are named and without its dependencies."""

import importlib
import os
import sys
from abc import ABCMeta
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

import torch
from torch.overrides import TorchFunctionMode


class OnHost(TorchFunctionMode):
    """What is made on "cuda" is made on the host."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Absent(ABCMeta):
    """The type of what stands for a name that is not there: it is False, may be called, and is a base class."""

    def __new__(kind, name, bases=(), members=None, **more):
        return super().__new__(kind, name, bases, {"absent": True} if members is None else members)

    def __init__(cls, name, bases=(), members=None, **more):
        super().__init__(name, bases, members or {})

    def __getattr__(cls, name):
        if name.startswith("__") or "absent" not in vars(cls):
            raise AttributeError(name)
        return Absent(name)

    def __call__(cls, *args, **kwargs):
        if "absent" not in vars(cls):
            return super().__call__(*args, **kwargs)
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Absent(cls.__name__)

    def __getitem__(cls, key):
        return cls

    def __bool__(cls):
        return "absent" not in vars(cls)


class AbsentModule(ModuleType):
    """Its submodules are imported when they are asked for."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        return importlib.import_module(path) if finder.exists(path) else Absent(name)


class Finder(MetaPathFinder, Loader):
    """Loads the modules that are named from a client's folder. All others of the client are absent."""

    def __init__(self):
        self.folder, self.packages, self.own, self.given = "", (), set(), {}

    def path(self, name):
        path = os.path.join(self.folder, *name.split("."))
        return os.path.join(path, "__init__.py") if os.path.isdir(path) else path + ".py"

    def exists(self, name):
        return os.path.exists(self.path(name))

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in self.packages:
            return None
        if name in self.own:
            return spec_from_file_location(name, self.path(name))
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        vars(module).update(self.given.get(module.__name__, {}))


finder = Finder()


def use(folder, packages, own, given):
    """The modules @own of @packages come from @folder; @given: by module, what others of them have."""
    finder.folder, finder.packages, finder.own, finder.given = folder, packages, set(own), given
    sys.meta_path.insert(0, finder)
    OnHost().__enter__()  # for the life of the process
    torch.accelerator.synchronize = torch.cuda.synchronize = lambda *_: None
