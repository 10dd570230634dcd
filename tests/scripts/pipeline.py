"""A raw pipeline of two stages: activations and gradients by send and recv, no DDP."""

import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
stage = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
for _ in range(6):
    optimizer.zero_grad()
    if rank == 0:
        out = stage(torch.randn(4, 32))
        dist.send(out.detach(), dst=1)
        gradient = torch.empty(4, 32)
        dist.recv(gradient, src=1)
        out.backward(gradient)
    else:
        received = torch.empty(4, 32)
        dist.recv(received, src=0)
        received.requires_grad_()
        time.sleep(0.03)
        stage(received).pow(2).mean().backward()
        dist.send(received.grad, dst=0)
    optimizer.step()
dist.destroy_process_group()
