# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries: there if COVEY_AS asks for them and a plugin is loaded, and not otherwise."""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

GROUPS = ("vllm.general_plugins", "sglang.srt.plugins")
LOADS = """
import sys
from importlib.metadata import entry_points
for point in entry_points(group="{group}"):  # as a framework loads its plugins
    if point.name == "covey":
        point.load()()
assert "torch" not in sys.modules  # nothing is imported before somebody wants it
"""
ALL = """
import importlib.util
assert importlib.util.find_spec("nixl_ep") and importlib.util.find_spec("deep_ep")  # how vLLM looks
import nixl_ep, deep_ep
from nixl_ep import Buffer, topk_idx_t
from nixl_ep.utils import EventOverlap
from deep_ep import Buffer as Second, Config, ElasticBuffer, EventOverlap as Same
from mooncake import pg
from mooncake.pg import get_peer_state, recover_ranks, join_group
from mooncake.mooncake_ep_buffer import Buffer as Third
import covey.ep, covey.ep.deep_ep, covey.ep.mooncake, torch.distributed as dist
assert Buffer is covey.ep.Buffer is nixl_ep.Buffer and Second is covey.ep.deep_ep.Buffer
assert Third is covey.ep.mooncake.Buffer and EventOverlap is Same
assert "mooncake" in dist.Backend.backend_list and "mooncake-cpu" in dist.Backend.backend_list
assert covey.ep.__spec__.name == "covey.ep" and "COVEY_AS" in nixl_ep.__doc__
"""


def run(program, names=None, path=None):
    environment = {k: v for k, v in os.environ.items() if k != "COVEY_AS"}
    if names is not None:
        environment["COVEY_AS"] = names
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment["PYTHONPATH"]])
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


@pytest.mark.parametrize("group", GROUPS)
def test_plugins_make_the_names_that_were_asked_for(group):
    assert run(LOADS.format(group=group) + ALL, "nixl_ep, deep_ep,mooncake") == (0, "")


def test_no_name_without_being_asked():
    assert [p.value for g in GROUPS for p in entry_points(group=g) if p.name == "covey"] == ["covey.aliases:install"] * 2
    for names in (None, "", "deep_ep"):
        code, text = run(LOADS.format(group=GROUPS[0]) + "import nixl_ep", names)
        assert code and "No module named 'nixl_ep'" in text


def test_a_wrong_name_is_named():
    code, text = run(LOADS.format(group=GROUPS[0]), "nixl_ep,nixl")
    assert code and "COVEY_AS has 'nixl': it may have nixl_ep, deep_ep, mooncake" in text


def test_other_modules_of_a_package_stay(tmp_path):
    """SGLang has mooncake.engine for other things."""
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").write_text("real = True\n")
    (package / "engine.py").write_text("engine = 1\n")
    (package / "pg.py").write_text("raise ImportError('this is not covey')\n")
    program = """
import mooncake.engine
from mooncake.pg import recover_ranks
assert mooncake.real and mooncake.engine.engine == 1 and recover_ranks.__module__ == "covey.compat.mooncake"
"""
    assert run(LOADS.format(group=GROUPS[1]) + program, "mooncake", tmp_path) == (0, "")


def test_too_late_is_said(tmp_path):
    (tmp_path / "nixl_ep.py").write_text("")
    code, text = run("import nixl_ep" + LOADS.format(group=GROUPS[0]), "nixl_ep", tmp_path)
    assert code and "nixl_ep is imported already, from" in text
