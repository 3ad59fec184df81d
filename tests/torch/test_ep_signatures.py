# SPDX-License-Identifier: Apache-2.0
"""Every method of the other libraries' buffers is here, with its parameters in their order and with their defaults.

Against the wheels that are installed beside torch; their compiled parts are not needed:
    pip install --no-deps nixl-cu13 sgl-deep-ep mooncake-transfer-engine-cuda13
"""

import importlib
import inspect
import sys
from importlib.metadata import PackageNotFoundError, files
from types import ModuleType

import pytest

import covey.ep
import covey.ep.deep_ep
import covey.ep.mooncake


class Anything:
    """Stands for what is compiled."""

    def __init__(self, *args):
        pass


def folder_of(wheel, module):
    """Where the package of an installed wheel is; it is not imported, since that needs a GPU's libraries."""
    try:
        found = [f for f in files(wheel) or () if str(f) == f"{module}/__init__.py"]
    except PackageNotFoundError:
        pytest.skip(f"{wheel} is not installed: pip install --no-deps {wheel}")
    assert found, f"{wheel} has no {module}"
    return found[0].locate().parent


def package(monkeypatch, name, folder, **compiled):
    """An empty package of that name, whose modules come from @folder. @compiled: names of a module that is not there."""
    made = ModuleType(name)
    made.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, name, made)
    for module, names in compiled.items():
        stub = ModuleType(f"{name}.{module}")
        for each in names:
            setattr(stub, each, Anything)
        setattr(made, module, stub)
        monkeypatch.setitem(sys.modules, stub.__name__, stub)


def public(kind):
    """Its methods, and those of its bases but for object's."""
    return {name: value for name, value in inspect.getmembers(kind)
            if callable(value) and (not name.startswith("_") or name == "__init__")}


def hold(theirs, ours, absent=()):
    """@absent: methods that @ours is known not to have."""
    lacking, different = set(), []
    for name, method in public(theirs).items():
        if not hasattr(ours, name):
            lacking.add(name)
            continue
        here = list(inspect.signature(getattr(ours, name)).parameters.values())
        for place, there in enumerate(inspect.signature(method).parameters.values()):
            if there.kind in (there.VAR_POSITIONAL, there.VAR_KEYWORD) or there.name.startswith("_"):
                continue
            mine = here[place] if place < len(here) else None
            if mine is None or (mine.name, mine.default) != (there.name, there.default):
                different.append(f"{name}(): {there}, here {mine}")
    assert lacking == set(absent)
    assert not different, "\n".join(different)


def test_nixl_ep(monkeypatch):
    folder = folder_of("nixl-cu13", "nixl_ep_cu13")
    package(monkeypatch, "nixl_ep_cu13", folder, nixl_ep_cpp=("Config", "EventHandle"))
    theirs = importlib.import_module("nixl_ep_cu13.buffer")
    hold(theirs.Buffer, covey.ep.Buffer)
    hold(theirs.EventOverlap, covey.ep.EventOverlap)


def deep_ep_modules(monkeypatch):
    folder = folder_of("sgl-deep-ep", "deep_ep")
    package(monkeypatch, "deep_ep", folder, _C=("Config", "EventHandle"))
    for name in ("buffers", "utils"):
        package(monkeypatch, f"deep_ep.{name}", folder / name)
    return folder


def test_deep_ep(monkeypatch):
    deep_ep_modules(monkeypatch)
    theirs = importlib.import_module("deep_ep.buffers.legacy")
    hold(theirs.Buffer, covey.ep.deep_ep.Buffer)
    hold(theirs.EventOverlap, covey.ep.deep_ep.EventOverlap)


def test_deep_ep_elastic(monkeypatch):
    deep_ep_modules(monkeypatch)
    theirs = importlib.import_module("deep_ep.buffers.elastic")
    hold(theirs.ElasticBuffer, covey.ep.deep_ep.ElasticBuffer, {
        "agrs_get_inplace_tensor", "agrs_new_session", "agrs_set_config", "all_gather", "create_agrs_session",
        "destroy_agrs_session", "engram_fetch", "engram_write", "get_agrs_buffer_size_hint",
        "get_agrs_num_max_session_bytes", "get_engram_storage_size_hint", "get_pp_buffer_size_hint", "pp_recv", "pp_send",
        "pp_set_config"})


def test_mooncake_ep(monkeypatch):
    folder = folder_of("mooncake-transfer-engine-cuda13", "mooncake")
    package(monkeypatch, "mooncake", folder)
    theirs = importlib.import_module("mooncake.mooncake_ep_buffer").Buffer
    absent = {name for name in public(theirs) if not hasattr(covey.ep.mooncake.Buffer, name)}
    elastic = covey.ep.mooncake.Buffer.create_elastic(rank=0)
    assert all(hasattr(elastic, name) for name in absent)  # those of create_elastic(), which gives another class
    monkeypatch.setattr(theirs, "dispatch", theirs._dispatch_legacy)
    monkeypatch.setattr(theirs, "combine", theirs._combine_legacy)
    hold(theirs, covey.ep.mooncake.Buffer, absent)
