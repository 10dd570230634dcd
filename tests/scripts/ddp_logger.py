"""Prints what DDP's own logger says of every step: exposed communication in ms. Rank 1 is late by a growing time."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
model = DistributedDataParallel(nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]), bucket_cap_mb=0.3)
model._set_ddp_runtime_logging_sample_rate(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
said = []
for step in range(14):
    optimizer.zero_grad()
    out = model(torch.ones(16, 256)).sum()
    time.sleep(0.01 * step * rank)
    out.backward()
    optimizer.step()
    data = model._get_ddp_logging_data()
    said.append((data.get("backward_comm_time", 0) - data.get("backward_compute_comm_overlap_time", 0)) / 1e6)
Path(sys.argv[1], f"logger-{rank}.json").write_text(json.dumps(said))
dist.destroy_process_group()
