# SPDX-License-Identifier: Apache-2.0
"""Ray Train over covey, on the host: `python ray_train.py`. A worker is killed once, and all are started again."""

import os
import tempfile

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def loop(config):
    import signal

    import ray.train
    import torch
    import torch.distributed as dist

    net = ray.train.torch.prepare_model(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(10):
        if step == 5 and dist.get_rank() == 1 and not os.path.exists(config["died"]):
            open(config["died"], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        net(torch.full((2, 4), float(dist.get_rank() + 1))).square().mean().backward()
        optimizer.step()
    weight = next(net.parameters()).detach().flatten()
    weights = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, weight)
    assert torch.equal(weights[0], weights[1]) and dist.get_backend() == "covey"


if __name__ == "__main__":
    where = tempfile.mkdtemp()
    died = os.path.join(where, "died")
    ray.init(num_cpus=4, include_dashboard=False)
    trainer = TorchTrainer(loop, train_loop_config={"died": died}, scaling_config=ScalingConfig(num_workers=2),
                           torch_config=TorchConfig(backend="covey"),
                           run_config=RunConfig(storage_path=where, failure_config=FailureConfig(max_failures=2)))
    trainer.fit()
    assert os.path.exists(died)
    print("fine")
