"""Every strategy against its algebra, over real gloo between real processes."""

import hashlib
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cpdp
from cpdp.errors import StrategyError, UsageError
from cpdp.exposure import break_down
from cpdp.recorder import StepRecorder
from tests.unit.ranks import run_ranks

ALL = ["ddp", "localsgd:k=3", "cpdp:k=3,beta=0.3"]


def network(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def batch(rank, step, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 6, generator=generator, dtype=dtype)
    return x, torch.randint(0, 3, (8,), generator=generator)


def state(module):
    return torch.cat([p.detach().flatten().double() for p in module.parameters()])


def digest(module):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in module.state_dict().values())).hexdigest()


def train(rank, strategy, steps, *, momentum=0.0, dtype=torch.float64, steps_per_epoch=10, after=state):
    """Train with the wrapper in the loop a DDP user would write; what `after` saw at every step."""
    net = network(dtype, seed=rank)  # different on every rank: the wrapper must start all from rank 0's
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)
    model = cpdp.DataParallel(net, optimizer, strategy, steps_per_epoch=steps_per_epoch)
    seen = []
    for step in range(steps):
        x, y = batch(rank, step, dtype)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        seen.append(after(net))
    model.close()
    return seen


def train_plain_ddp(rank, steps, dtype):
    net = network(dtype, seed=rank)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = batch(rank, step, dtype)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return state(net)


def ddp_and_plain_ddp(rank):
    return train(rank, "ddp", 8, momentum=0.9, dtype=torch.float32)[-1], train_plain_ddp(rank, 8, torch.float32)


def test_ddp_through_the_wrapper_is_torchs_ddp_bit_for_bit():
    for ours, torchs in run_ranks(2, ddp_and_plain_ddp):
        assert torch.equal(ours, torchs)


def bucket_sizes(ddp):
    """Bytes of each bucket, from the third step on: DDP sorts its buckets anew after the first."""
    for _ in range(3):
        ddp(torch.ones(2, 512)).sum().backward()
    return ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]


def buckets(rank):
    def wide():
        return nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))

    def ours(strategy):
        net = wide()
        return cpdp.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), strategy)._inner[0]

    return [
        bucket_sizes(DistributedDataParallel(wide())),
        bucket_sizes(ours("ddp")),
        bucket_sizes(DistributedDataParallel(wide(), bucket_cap_mb=2)),
        bucket_sizes(ours("ddp:bucket_mb=2")),
    ]


def test_gradients_leave_in_torchs_own_buckets():
    for plain, ours, plain_of_two, ours_of_two in run_ranks(2, buckets):
        assert ours == plain
        assert ours_of_two == plain_of_two
        assert ours.split(",")[0] != ours_of_two.split(",")[0], "by default the first bucket is smaller"


def local_sgd_and_ddp(rank):
    return train(rank, "localsgd:k=1", 12), train(rank, "ddp", 12)


def test_averaging_parameters_after_every_plain_sgd_step_is_ddp():
    for local, ddp in run_ranks(2, local_sgd_and_ddp):
        for ours, theirs in zip(local, ddp, strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-14)


def all_reduce_then_average(rank, period, steps):
    """CPDP with beta 0 in its plainest form: blocking all-reduces, nothing of the wrapper."""
    net = network(seed=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(steps):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        boundary = (step + 1) % period == 0
        if boundary:
            for p in net.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
        if boundary:
            for p in net.parameters():
                dist.all_reduce(p.data)
                p.data /= dist.get_world_size()
        seen.append(state(net))
    return seen


def cpdp_and_reference(rank):
    ours = train(rank, "cpdp:k=3,beta=0,epoch_end=false", 12, momentum=0.9, steps_per_epoch=None)
    return ours, all_reduce_then_average(rank, 3, 12)


def test_cpdp_with_beta_zero_is_all_reduce_then_average():
    for ours, reference in run_ranks(3, cpdp_and_reference):
        for a, b in zip(ours, reference, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-14)


class NumpyCpdp:
    """The published rule for a linear model with squared loss, all workers in one process, written from the paper."""

    def __init__(self, world, beta, lr, momentum):
        self.theta = [np.zeros(5) for _ in range(world)]
        self.buffer = [np.zeros(5) for _ in range(world)]
        self.reference, self.velocity = np.zeros(5), np.zeros(5)
        self.beta, self.lr, self.momentum = beta, lr, momentum

    def step(self, data, boundary):
        gradients = [2 * x.T @ (x @ theta - y) / len(y) for theta, (x, y) in zip(self.theta, data, strict=True)]
        if boundary:
            gradients = [np.mean(gradients, axis=0)] * len(gradients)
        for worker, gradient in enumerate(gradients):
            self.buffer[worker] = self.momentum * self.buffer[worker] + gradient
            self.theta[worker] = self.theta[worker] - self.lr * self.buffer[worker]
        if boundary:
            self.velocity = self.beta * self.velocity + (np.mean(self.theta, axis=0) - self.reference)
            self.reference = self.reference + self.velocity
            self.theta = [self.reference.copy() for _ in self.theta]


def regression(worker, step):
    generator = np.random.default_rng(100 * step + worker)
    x = generator.standard_normal((4, 5))
    return x, x @ np.arange(5.0) + 0.1 * generator.standard_normal(4)


def train_regression(rank, strategy, steps, steps_per_epoch):
    net = nn.Linear(5, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.8)
    model = cpdp.DataParallel(net, optimizer, strategy, steps_per_epoch=steps_per_epoch)
    seen = []
    for step in range(steps):
        x, y = (torch.from_numpy(part) for part in regression(rank, step))
        optimizer.zero_grad()
        (model(x).squeeze(1) - y).square().mean().backward()
        optimizer.step()
        seen.append(net.weight.detach().numpy().ravel().copy())
    return seen


@pytest.mark.parametrize("beta", [0.3, 0.7])
def test_cpdp_with_momentum_follows_an_independent_numpy_implementation(beta):
    # Epochs of 10 steps, K = 4, one warm-up epoch: 1..10, then 14, 18, 20, 24, 28, 30.
    boundaries = {*range(1, 11), 14, 18, 20, 24, 28, 30}
    ours = run_ranks(2, train_regression, f"cpdp:k=4,beta={beta},warmup_epochs=1", 30, 10)
    numpy = NumpyCpdp(2, beta, lr=0.02, momentum=0.8)
    for step in range(30):
        numpy.step([regression(worker, step) for worker in range(2)], step + 1 in boundaries)
        for worker in range(2):
            assert np.allclose(ours[worker][step], numpy.theta[worker], rtol=0, atol=1e-12), step


@pytest.mark.parametrize("strategy", ALL)
def test_replicas_are_equal_bit_by_bit_after_each_boundary_and_differ_between(strategy):
    by_rank = run_ranks(3, train_digests, strategy)
    equal = [len(set(hashes)) == 1 for hashes in zip(*by_rank, strict=True)]
    boundary = [strategy == "ddp" or n % 3 == 0 or n == 10 for n in range(1, 11)]
    assert equal == boundary


def train_digests(rank, strategy):
    return train(rank, strategy, 10, momentum=0.9, dtype=torch.float32, after=digest)


def large_average(rank):
    """A model of many chunks, none of them a round number of elements, on several gloo contexts."""
    torch.manual_seed(rank)
    net = nn.Linear(1031, 997)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = cpdp.DataParallel(net, optimizer, "cpdp:k=1,beta=0.5")
    model.collectives.chunk_bytes = 100_000
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 1031)).square().sum().backward()
        optimizer.step()
    return digest(net)


def test_a_ring_of_three_over_several_contexts_gives_all_ranks_the_same_bits():
    assert len(set(run_ranks(3, large_average, contexts=4))) == 1


def tied(rank, strategy):
    embedding, decoder = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
    decoder.weight = embedding.weight
    net = nn.ModuleDict({"embedding": embedding, "decoder": decoder})
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    events = []
    model = cpdp.DataParallel(net, optimizer, strategy, recorder=StepRecorder(events.append))
    seen = []
    for _ in range(2):
        with torch.no_grad():
            embedding.weight.fill_(1.0 if rank == 0 else 3.0)
        optimizer.zero_grad()
        hidden = embedding(torch.tensor([0, 1, 2]))
        del hidden
        net.zero_grad()
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        pointers = {embedding.weight.data_ptr(), decoder.weight.data_ptr()}
        seen.append((embedding.weight.tolist(), decoder.weight.tolist(), len(pointers)))
        net.load_state_dict(net.state_dict())
    sent = [sum(op.bytes for op in event.ops if op.purpose == "parameters") for event in events]
    model.close()
    return seen, sent


@pytest.mark.parametrize("strategy", ["localsgd:k=1", "cpdp:k=1,beta=0"])
def test_tied_weights_are_averaged_once_and_stay_tied(strategy):
    for seen, sent in run_ranks(2, tied, strategy):
        assert seen == [([[2.0, 2.0]] * 3, [[2.0, 2.0]] * 3, 1)] * 2
        assert sent == [3 * 2 * 4] * 2


def accumulate(rank, strategy, micro_batches, per_step):
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    events = []
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, optimizer, strategy, recorder=recorder)
    weights = []
    mine = [x[rank] for x in micro_batches]
    for start in range(0, len(mine), per_step):
        optimizer.zero_grad()
        for x in model.accumulate(mine[start : start + per_step]):
            model(torch.tensor([[float(x)]])).sum().backward()
        optimizer.step()
        weights.append(net.weight.item())
    model.close()
    sent = {}
    for event in events:
        for op in event.ops:
            if op.purpose in ("gradients", "parameters"):
                sent.setdefault(op.purpose, []).append((event.n, op.bytes))
    return weights, sent


PAIRS = [(1, 3), (5, 11)]


def test_accumulated_gradients_are_averaged_once_per_optimizer_step():
    # Sums 6 and 14, mean 10. Synchronising the first micro-batch instead would give -7 and -13.
    for weights, sent in run_ranks(2, accumulate, "ddp", PAIRS, 2):
        assert weights == [-10.0]
        assert sent == {"gradients": [(1, 4)]}


def test_without_accumulation_the_same_batches_cross_the_wire_twice():
    for weights, sent in run_ranks(2, accumulate, "ddp", PAIRS, 1):
        assert weights == [-2.0, -10.0]
        assert sent == {"gradients": [(1, 4), (2, 4)]}


def test_a_period_counts_optimizer_steps_not_micro_batches():
    # Local sums -6 and -14, twice; the mean of -12 and -28 is -20, from exactly one averaging.
    for rank, (weights, sent) in enumerate(run_ranks(2, accumulate, "localsgd:k=2,epoch_end=false", PAIRS * 2, 2)):
        assert weights == [[-6.0, -14.0][rank], -20.0]
        assert sent == {"parameters": [(2, 4)]}


def test_a_short_group_at_the_end_of_an_epoch_is_a_whole_step():
    # Five micro-batches, two per step: means 10, 10 and the leftover's (1 + 3) / 2.
    for weights, sent in run_ranks(2, accumulate, "ddp", [*PAIRS, *PAIRS, (1, 3)], 2):
        assert weights == [-10.0, -20.0, -22.0]
        assert sent == {"gradients": [(1, 4), (2, 4), (3, 4)]}


def test_cpdp_under_accumulation_sends_gradients_and_parameters_at_boundaries_only():
    for weights, sent in run_ranks(2, accumulate, "cpdp:k=2,beta=0,epoch_end=false", PAIRS * 2, 2):
        # Step 1 is local: -6 and -14. Step 2 adds the averaged gradient: -16 and -24, mean -20.
        assert weights[-1] == -20.0
        assert sent == {"gradients": [(2, 4)], "parameters": [(2, 4)]}


def misuse(rank, how):
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    model = cpdp.DataParallel(net, optimizer, "ddp")
    try:
        if how == "backward alone":
            loss = model(torch.ones(1, 1)).sum()
            with model.no_sync():
                loss.backward()
        else:
            with model.no_sync():
                model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    except UsageError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("backward alone", "step 1: no_sync() must cover the forward pass as well"),
        ("never synced", "step 1: the last backward pass before optimizer.step() ran under no_sync()"),
    ],
)
def test_gradients_that_would_never_be_averaged_are_refused(how, message):
    for said in run_ranks(2, misuse, how):
        assert message in said


def batch_norm(rank, strategy):
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = cpdp.DataParallel(net, optimizer, strategy)
    seen = []
    for step in range(4):
        optimizer.zero_grad()
        if step == 3:
            net[1].running_mean.fill_(1.0 + rank)
            net[1].momentum = 0.0  # the forward pass leaves the running statistics alone
        model(torch.randn(8, 4) + rank).square().sum().backward()
        optimizer.step()
        seen.append((net[1].running_mean.tolist(), net[1].running_var.tolist(), int(net[1].num_batches_tracked)))
    return seen, digest(net)


@pytest.mark.parametrize("strategy", ["localsgd:k=2,epoch_end=false", "cpdp:k=2,epoch_end=false"])
def test_running_statistics_are_averaged_at_boundaries_and_local_between(strategy):
    (first, a), (second, b) = run_ranks(2, batch_norm, strategy)
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert first[2] != second[2]
    assert first[3] == second[3]
    assert first[3][0] == [1.5] * 3  # the mean of 1 and 2, without momentum
    assert first[3][2] == 4
    assert a == b


def test_ddp_broadcasts_rank_zeros_running_statistics_before_each_forward_pass():
    (first, _), (second, _) = run_ranks(2, batch_norm, "ddp")
    assert first[3][0] == [1.0] * 3
    assert second[3][0] == [1.0] * 3


def frozen_and_unused(rank, strategy):
    torch.manual_seed(rank)
    net = nn.ModuleDict({"used": nn.Linear(2, 2), "frozen": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    net["frozen"].requires_grad_(False)

    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = net

        def forward(self, x):
            return self.parts["used"](self.parts["frozen"](x))

    module = Partly()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    model = cpdp.DataParallel(module, optimizer, strategy)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((1, 2), 1.0 + rank)).sum().backward()
        optimizer.step()
    return digest(module), net["frozen"].weight.tolist()


@pytest.mark.parametrize("strategy", ["ddp:find_unused=true", "localsgd:k=2,epoch_end=false"])
def test_frozen_and_unused_parameters_do_not_disturb(strategy):
    (a, frozen), (b, _) = run_ranks(2, frozen_and_unused, strategy)
    assert a == b
    torch.manual_seed(0)
    expected = nn.ModuleDict({"used": nn.Linear(2, 2), "frozen": nn.Linear(2, 2)})["frozen"].weight.tolist()
    assert frozen == expected


def resumed(rank, strategy):
    def fresh():
        net = network(torch.float32, seed=0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        return net, optimizer, cpdp.DataParallel(net, optimizer, strategy, steps_per_epoch=10)

    def steps(net, optimizer, model, numbers):
        for step in numbers:
            x, y = batch(rank, step, torch.float32)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    whole = fresh()
    steps(*whole, range(8))
    half = fresh()
    steps(*half, range(5))
    saved = half[0].state_dict(), half[1].state_dict(), half[2].training_state()
    again = fresh()
    again[0].load_state_dict(saved[0])
    again[1].load_state_dict(saved[1])
    again[2].load_training_state(saved[2])
    steps(*again, range(5, 8))
    return digest(whole[0]), digest(again[0])


@pytest.mark.parametrize("strategy", ALL)
def test_a_run_continued_from_its_saved_state_ends_with_the_same_bits(strategy):
    for whole, again in run_ranks(2, resumed, strategy):
        assert whole == again


@pytest.mark.parametrize("strategy", ALL)
def test_a_lone_worker_trains_without_a_process_group(strategy):
    events = []
    net = network(torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = cpdp.DataParallel(net, optimizer, strategy, steps_per_epoch=10, recorder=StepRecorder(events.append))
    for step in range(4):
        x, y = batch(0, step, torch.float32)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert len(events) == 4
    for event in events:
        parts = break_down(event)
        assert event.ops == ()
        assert parts.hidden_ns == parts.payload_bytes == 0
        assert set(parts.exposed_by_cause) <= {"update"}
        if not strategy.startswith("cpdp"):  # whose momentum is arithmetic of its own even for one worker
            assert parts.exposed_ns == 0


def test_local_sgd_for_a_lone_worker_is_plain_sgd():
    net, plain = network(), network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = cpdp.DataParallel(net, optimizer, "localsgd:k=2", steps_per_epoch=4)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(4):
        x, y = batch(0, step)
        for forward, opt in ((model, optimizer), (plain, reference)):
            opt.zero_grad()
            nn.functional.cross_entropy(forward(x), y).backward()
            opt.step()
    assert torch.equal(state(net), state(plain))


def test_a_period_longer_than_the_run_communicates_nothing():
    for seen in run_ranks(2, silent_run):
        assert seen == [(False, ())] * 3


def silent_run(rank):
    events = []
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, optimizer, "cpdp:k=100,epoch_end=false", recorder=recorder)
    with recorder.paused():
        pass  # what the start itself sent belongs to no step
    for step in range(3):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [(event.boundary, event.ops) for event in events]


def test_state_dict_keys_are_those_of_ddp():
    net = network()
    model = cpdp.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), "ddp")
    assert list(model.state_dict()) == [f"module.{key}" for key in net.state_dict()]
    assert len(list(model.parameters())) == len(list(net.parameters()))


def test_a_strategy_that_ends_epochs_needs_their_length():
    net = network()
    with pytest.raises(StrategyError, match="steps_per_epoch"):
        cpdp.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), "cpdp:k=4")


def test_a_saved_state_of_another_strategy_is_refused():
    net = network()
    model = cpdp.DataParallel(net, torch.optim.SGD(net.parameters(), lr=0.1), "ddp")
    with pytest.raises(StrategyError, match="another strategy's: reference, velocity"):
        model.load_training_state({"steps": 3, "strategy": {"reference": [], "velocity": []}})


def test_ceil_of_epoch_over_period_boundaries_reach_the_events():
    events = []
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    recorder = StepRecorder(events.append, warmup_steps=2)
    model = cpdp.DataParallel(net, optimizer, "localsgd:k=3", steps_per_epoch=7, recorder=recorder)
    for step in range(7):
        x, y = batch(0, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert [event.n for event in events if event.boundary] == [3, 6, 7]
    assert sum(event.boundary for event in events) == math.ceil(7 / 3)
    assert [event.warmup for event in events] == [True, True] + [False] * 5
