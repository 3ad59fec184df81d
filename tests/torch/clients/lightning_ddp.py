# SPDX-License-Identifier: Apache-2.0
"""Lightning over covey: `python lightning_ddp.py`. Two ranks on the host, with the same weights at the end."""

import torch

import covey.torch  # noqa: F401
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        weights = self.all_gather(self.layer.weight.detach())
        assert torch.equal(weights[0], weights[1])
        print("fine", torch.distributed.get_backend(), flush=True)


if __name__ == "__main__":
    rows = torch.utils.data.TensorDataset(torch.arange(64.0).view(16, 4) / 64)
    trainer = Trainer(accelerator="cpu", devices=2, max_epochs=2, logger=False, enable_checkpointing=False,
                      strategy=DDPStrategy(process_group_backend="covey"))
    trainer.fit(Net(), torch.utils.data.DataLoader(rows, batch_size=2))
