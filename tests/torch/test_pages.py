# SPDX-License-Identifier: Apache-2.0
from children import blocks_run


def test_the_blocks_of_the_pages_run():
    blocks_run("start/torch", "start/from-gloo", "start/from-deepep", "start/from-mooncake", "start/from-nixl-ep")
