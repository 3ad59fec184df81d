# SPDX-License-Identifier: Apache-2.0
"""The code blocks of the pages in Python run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["start/torch", "start/from-gloo", "start/from-deepep",
         "start/from-mooncake", "start/from-nixl-ep"]


def test_the_blocks_of_the_pages_run():
    done = subprocess.run([sys.executable, str(ROOT / "tests/docs/run"), str(ROOT), os.environ["COVEY_BUILD"],
                           *(f"docs/{page}.md" for page in PAGES)], capture_output=True, text=True)
    assert done.returncode == 0 and "0 run" not in done.stdout, done.stdout + done.stderr
