"""In the manner of torchvision's reference scripts: loaders with samplers, meters that all-reduce, evaluation."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class SmoothedValue:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value
        self.count += 1

    def synchronize_between_processes(self):
        t = torch.tensor([self.count, self.total], dtype=torch.float64)
        dist.barrier()
        dist.all_reduce(t)
        self.count, self.total = int(t[0].item()), t[1].item()


def train_one_epoch(model, criterion, optimizer, loader, scheduler):
    model.train()
    meter = SmoothedValue()
    for image, target in loader:
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss.item())
    scheduler.step()
    meter.synchronize_between_processes()


def evaluate(model, criterion, loader):
    model.eval()
    meter = SmoothedValue()
    with torch.inference_mode():
        for image, target in loader:
            meter.update(criterion(model(image), target).item())
    meter.synchronize_between_processes()
    return meter.total / meter.count


def main():
    dist.init_process_group(backend="gloo", init_method="env://")
    dist.barrier()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 3, 8, 8), torch.randint(0, 10, (96,)))
    sampler = DistributedSampler(data)
    train = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1)
    test = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net) if os.environ.get("SYNC_BN") else net
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train_one_epoch(model, nn.CrossEntropyLoss(), optimizer, train, scheduler)
        evaluate(model, nn.CrossEntropyLoss(), test)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
