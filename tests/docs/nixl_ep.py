# 4 ranks
import os

import torch

from covey.ep import Buffer as _Buffer

rank, store, hidden = int(os.environ["COVEY_RANK"]), None, 128
hint = _Buffer.get_rdma_size_hint(128, hidden, 8, 256)
x = torch.ones(8, hidden, dtype=torch.bfloat16)
topk_idx = torch.arange(16).reshape(8, 2)
topk_weights = torch.ones(8, 2)
y = torch.zeros(32, 4 * 128, hidden, dtype=torch.bfloat16)
