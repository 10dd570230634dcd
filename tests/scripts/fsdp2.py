"""FSDP2: fully_shard per layer and on the root, Adam, on CPU and gloo."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)])
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optim = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(6):
    loss = model(torch.randn(8, 64)).sum()
    loss.backward()
    optim.step()
    optim.zero_grad()
dist.destroy_process_group()
