"""What every strategy owes its user, whatever its rule: equal replicas where it says so, restarts, ties, one worker."""

import copy
import os

import pytest
import torch
from torch import nn

import cpdp
from cpdp import strategies
from cpdp.compute import InertOptimizer
from cpdp.errors import StrategyError
from cpdp.exposure import break_down
from cpdp.recorder import StepRecorder
from tests.conftest import ROOT
from tests.unit.ranks import run_ranks
from tests.unit.test_parallel import batch, digest, network

SPECS = [
    "ddp",
    "ddp:hook=fp16",
    "ddp:hook=powersgd,rank=1,start=2",
    "localsgd:k=3",
    "pasgd:k=3",
    "cpdp:k=3,beta=0.3",
    "postlocal:k=3,warmup=2",
    "slowmo:k=3,beta=0.5",
    "slowmo:k=3,alpha=0.8,beta=0.5,buffers=average",
    "bmuf:k=3,bm=0.5,nesterov=true",
    "adacomm:tau0=4,interval_steps=5",
    "diloco:k=3",
    "hierarchical:k=3",
    "cpdp-fused:k=3",
    "cpdp-overlapped:k=3,delay=2,fused=false",
    "cpdp-overlapped:k=3,delay=1",
    "cpdp-overlapped:k=3",
    "cocod:k=3",
    "overlap:k=3,beta=0.5",
    "overlap:k=3,beta=0",
    "eager:k=3",
    "streaming:k=3,p=2,delay=1",
    "streaming:k=3,p=1,delay=0,alpha=0",
    "streaming:k=4,p=2,delay=3,exchange=int4,pattern=sequential",
    "adacomm:tau0=3,interval_steps=3,beta=0.3,buffers=average",
    "adacomm:tau0=4,interval_steps=5,search=2,search_steps=4",
    "scheduled:k=3,rule=linear,last=1,over=9",
    "scheduled:k=2,rule=adpsgd,measure=2",
]


class Run:
    """A model under a strategy on this rank, with everything a restart needs."""

    def __init__(self, strategy, seed=0, events=None):
        self.net = network(torch.float32, seed=seed)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        recorder = None if events is None else StepRecorder(events.append)
        self.model = cpdp.DataParallel(self.net, self.optimizer, strategy, steps_per_epoch=10, recorder=recorder)

    def step(self, rank, number):
        x, y = batch(rank, number, torch.float32)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.model.observe_loss(loss)
        loss.backward()
        self.optimizer.step()

    def saved(self):
        return copy.deepcopy([self.net.state_dict(), self.optimizer.state_dict(), self.model.training_state()])

    def load(self, saved):
        self.net.load_state_dict(saved[0])
        self.optimizer.load_state_dict(saved[1])
        self.model.load_training_state(saved[2])


def test_every_strategy_is_held_to_the_contract():
    assert {strategies.parse(spec).name for spec in SPECS} == set(strategies.names())


def digests(rank, strategy):
    os.environ["NETLAB_SITE"] = ["a", "b", "b"][rank]
    run = Run(strategy, seed=rank)
    seen = []
    for number in range(20):
        run.step(rank, number)
        seen.append((digest(run.net), run.model.replicas_equal))
    run.model.close()
    return seen


@pytest.mark.parametrize("strategy", SPECS)
def test_replicas_are_equal_bit_by_bit_exactly_where_the_strategy_says_so(strategy):
    by_rank = run_ranks(3, digests, strategy)
    for step in zip(*by_rank, strict=True):
        hashes, claims = {digest for digest, _ in step}, {claim for _, claim in step}
        assert len(claims) == 1
        assert (len(hashes) == 1) == claims.pop()


def interrupted(rank, strategy, at, steps):
    os.environ["NETLAB_SITE"] = ["a", "b"][rank]
    whole = Run(strategy)
    for number in range(steps):
        whole.step(rank, number)
    half = Run(strategy)
    for number in range(at):
        half.step(rank, number)
    saved = half.saved()
    half.model.close()
    again = Run(strategy, seed=1)
    again.load(saved)
    for number in range(at, steps):
        again.step(rank, number)
    result = digest(whole.net), digest(again.net), whole.saved()[2]["strategy"], again.saved()[2]["strategy"]
    whole.model.close()
    again.model.close()
    return result


@pytest.mark.parametrize("at", [4, 6])  # between boundaries and on one
@pytest.mark.parametrize("strategy", SPECS)
def test_a_restart_continues_with_the_same_bits(strategy, at):
    for whole, again, kept, kept_again in run_ranks(2, interrupted, strategy, at, 11):
        assert whole == again
        assert equal(kept, kept_again)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.parametrize("strategy", SPECS)
def test_a_lone_worker_needs_no_process_group_and_sends_nothing(strategy):
    events = []
    run = Run(strategy, events=events)
    for number in range(7):
        run.step(0, number)
    run.model.close()
    assert len(events) == 7
    for event in events:
        assert event.ops == ()
        assert set(break_down(event).exposed_by_cause) <= {"update", "parameters"}


def tied(rank, strategy):
    embedding, decoder = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
    decoder.weight = embedding.weight
    net = nn.ModuleDict({"embedding": embedding, "decoder": decoder})
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    events = []
    recorder = StepRecorder(events.append)
    model = cpdp.DataParallel(net, optimizer, strategy, recorder=recorder)
    with recorder.paused(), torch.no_grad():
        embedding.weight.fill_(1.0 if rank == 0 else 3.0)
    embedding.weight.grad = torch.zeros_like(embedding.weight)
    model.observe_loss(1.0)
    optimizer.step()
    pointers = {embedding.weight.data_ptr(), decoder.weight.data_ptr()}
    sent = [op.bytes for event in events for op in event.ops if op.purpose == "parameters"]
    model.close()
    return embedding.weight.tolist(), decoder.weight.tolist(), len(pointers), sent


@pytest.mark.parametrize("strategy", ["slowmo:k=1,alpha=1,beta=0", "bmuf:k=1,bm=0", "postlocal:k=1"])
def test_tied_weights_are_averaged_once_and_stay_tied(strategy):
    for result in run_ranks(2, tied, strategy):
        assert result == ([[2.0, 2.0]] * 3, [[2.0, 2.0]] * 3, 1, [3 * 2 * 4])


def test_the_reference_names_every_strategy_parameter_and_default():
    text = (ROOT / "docs" / "reference" / "strategies.md").read_text()
    sections = {part.split()[0]: part for part in text.split("\n## ")[1:]}
    for entry in strategies.catalogue():
        section = sections[entry["name"]]
        for parameter in entry["parameters"]:
            assert f"`{parameter['name']}`" in section, (entry["name"], parameter["name"])


@pytest.mark.parametrize("strategy", SPECS)
def test_the_state_of_another_strategy_or_model_is_refused(strategy):
    run = Run(strategy)
    with pytest.raises(StrategyError, match="another strategy's"):
        run.model.load_training_state({"steps": 3, "strategy": {"nonsense": []}})


@pytest.mark.parametrize("strategy", [spec for spec in SPECS if "average" not in spec and "adacomm" not in spec])
def test_every_strategy_runs_with_the_optimizer_of_a_replayed_workload(strategy):
    net = network(torch.float32)
    optimizer = InertOptimizer(net.parameters())
    model = cpdp.DataParallel(net, optimizer, strategy, steps_per_epoch=10)
    for number in range(7):
        x, y = batch(0, number, torch.float32)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.close()


def test_averaging_the_state_of_a_replayed_optimizer_is_refused():
    net = network(torch.float32)
    with pytest.raises(StrategyError, match="a replayed workload's optimizer has none"):
        cpdp.DataParallel(net, InertOptimizer(net.parameters()), "slowmo:buffers=average")


MODELS = {  # copies of the parameters that a strategy keeps beside the model, gradients and optimizer state
    "ddp": 0,
    "localsgd:k=3": 0,
    "pasgd:k=3": 0,
    "cpdp:k=3": 2,
    "cpdp-fused:k=3": 2,
    "cpdp-overlapped:k=3": 4,
    "postlocal:k=3": 0,
    "slowmo:k=3": 2,
    "bmuf:k=3": 2,
    "adacomm:tau0=3": 0,
    "adacomm:tau0=3,beta=0.3": 2,
    "diloco:k=3": 2,
    "hierarchical:k=3": 0,
    "cocod:k=3": 2,
    "overlap:k=3": 2,
    "overlap:k=3,beta=0": 1,
    "eager:k=3": 4,
    "streaming:k=3,p=2": 2,
    "ddp:hook=fp16": 0,
    "scheduled:k=3": 0,
}


def tensors_of(value, seen):
    """Sizes of the distinct tensors that a strategy holds, found by walking everything that it refers to."""
    if id(value) in seen or isinstance(value, nn.Module | torch.optim.Optimizer):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value.untyped_storage().data_ptr(), value.untyped_storage().nbytes()
    elif isinstance(value, dict):
        yield from (found for item in value.values() for found in tensors_of(item, seen))
    elif isinstance(value, list | tuple):
        yield from (found for item in value for found in tensors_of(item, seen))
    elif type(value).__module__.startswith("cpdp."):
        yield from tensors_of(vars(value), seen)


@pytest.mark.parametrize(("strategy", "copies"), MODELS.items())
def test_a_strategy_keeps_as_many_copies_of_the_model_as_the_reference_says(strategy, copies):
    run = Run(strategy)
    for number in range(8):
        run.step(0, number)
    held = dict(tensors_of(run.model.strategy, set()))
    model = {p.untyped_storage().data_ptr() for p in run.net.parameters()}
    size = sum(p.numel() * p.element_size() for p in run.net.parameters())
    kept = sum(size for place, size in held.items() if place not in model)
    assert copies * size <= kept <= copies * size + 64


def test_every_strategys_memory_is_stated():
    assert {strategies.parse(spec).name for spec in MODELS} == set(strategies.names())
