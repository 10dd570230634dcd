"""A small training problem twice: with torch under a strategy, and with numpy for all workers in one process.

The model is one vector, the loss log cosh of its residuals: the gradient is x' tanh(x theta - y) / n, not linear in
theta, so that a rule which only holds for quadratics does not pass.
"""

import numpy as np
import torch
from torch import nn

import cpdp
from cpdp import strategies

SIZE, BATCH = 5, 4


def start():
    return np.linspace(-0.5, 1.0, SIZE)


def data(worker, step, *, alike=False):
    generator = np.random.default_rng(1000 * step + (0 if alike else worker))
    x = generator.standard_normal((BATCH, SIZE))
    return x, x @ np.arange(SIZE) / 2 + 0.3 * generator.standard_normal(BATCH)


def gradient(theta, x, y):
    return x.T @ np.tanh(x @ theta - y) / len(y)


def log_cosh(residual):
    return (residual + nn.functional.softplus(-2 * residual) - np.log(2)).mean()


def optimizer_for(parameters, kind, lr):
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.01)
    if kind == "decay":
        return torch.optim.SGD(parameters, lr=lr, weight_decay=0.2)
    return torch.optim.SGD(parameters, lr=lr, momentum=float(kind))


def train(rank, strategy, rates, *, optimizer="0.0", steps_per_epoch=None, alike=False, configure=None):
    """One rank's parameter vector after every step; `rates` are the learning rates, one a step.

    `optimizer` is "adamw", "decay" (SGD with weight decay) or the momentum of SGD.
    """
    net = nn.Linear(SIZE, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(start())[None] + rank)  # rank 0's start must win
    opt = optimizer_for(net.parameters(), optimizer, rates[0])
    chosen = strategies.build(strategy)
    if configure:
        configure(chosen)
    model = cpdp.DataParallel(net, opt, chosen, steps_per_epoch=steps_per_epoch)
    seen = []
    for step, rate in enumerate(rates):
        opt.param_groups[0]["lr"] = rate
        take_step(net, opt, model, rank, step, alike=alike)
        seen.append(net.weight.detach().numpy().ravel().copy())
    model.close()
    return seen


def take_step(net, opt, model, rank, step, *, alike=False):
    x, y = (torch.from_numpy(part) for part in data(rank, step, alike=alike))
    opt.zero_grad()
    loss = log_cosh(model(x).squeeze(1) - y)
    model.observe_loss(loss)
    loss.backward()
    opt.step()
    return loss.item()


class Workers:
    """All workers of the numpy side: SGD with momentum, one step at a time."""

    def __init__(self, world, momentum=0.0):
        self.theta = [start() for _ in range(world)]
        self.buffer = [np.zeros(SIZE) for _ in range(world)]
        self.momentum = momentum

    def step(self, step, lr, *, alike=False, gradients=None):
        for worker in range(len(self.theta)):
            own = gradient(self.theta[worker], *data(worker, step, alike=alike))
            g = own if gradients is None else gradients[worker]
            self.buffer[worker] = self.momentum * self.buffer[worker] + g
            self.theta[worker] = self.theta[worker] - lr * self.buffer[worker]

    def gradients(self, step):
        return [gradient(theta, *data(worker, step)) for worker, theta in enumerate(self.theta)]

    def mean(self):
        return np.mean(self.theta, axis=0)

    def set_all(self, theta):
        self.theta = [theta.copy() for _ in self.theta]


def assert_same(ours, numpy_history, tolerance=1e-12):
    """`ours` by rank and step against the numpy side's list of (theta of all workers) by step."""
    assert len(ours[0]) == len(numpy_history)
    for step, thetas in enumerate(numpy_history):
        for worker, theta in enumerate(thetas):
            assert np.allclose(ours[worker][step], theta, rtol=0, atol=tolerance), (step, worker)
