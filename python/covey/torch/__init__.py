# SPDX-License-Identifier: Apache-2.0
"""The process group "covey" for torch.distributed: for tensors on the host and on CUDA devices.

    import torch.distributed as dist
    import covey.torch                             # from torch 2.14 on, the entry point does this

    dist.init_process_group("covey")               # under torchrun; elsewhere init_method="covey://"
    dist.all_reduce(tensor)

A rank may be killed at any moment. With on_loss="fail" (the default) the next operation raises PeerError on all
survivors alike. With "continue" operations go on with the survivors' contributions, and a work says whose:
`work.ranks`. Replacements and new ranks come in at admit().
"""

from ._loop import admit, average_hook, check, recover
from ._options import Options
from ._process_group import ProcessGroup
from ._register import init_process_group, register
from ._work import DeviceWork, HostWork

register()

__all__ = ["DeviceWork", "HostWork", "Options", "ProcessGroup", "admit", "average_hook", "check", "init_process_group",
           "recover", "register"]
