"""An experiment file means one thing, its faults are named with file, line and key, and its matrix is
reproducible.
"""

import json
import re
import textwrap
from collections import Counter

import pytest

from cpdp import experiment, matrix
from cpdp.errors import ExperimentError, StrategyError
from cpdp.phase import parse_strategies
from netlab import load_profile

GOOD = """
    name: small
    network: grid5000-nancy-sophia
    strategies: [ddp, "cpdp:k=4,beta=0.3"]
    seed: 7
    phases:
      - {name: exposure, kind: replayed, workload: resnet50-cifar100, steps: 8, repeats: 3}
      - {name: accuracy, kind: training, workload: digits, epochs: 2}
"""


def parse(text: str) -> experiment.Experiment:
    return experiment.parse(textwrap.dedent(text).strip(), "exp.yaml")


def refused(text: str) -> str:
    with pytest.raises(ExperimentError) as error:
        parse(text)
    return str(error.value)


def test_a_file_is_read_with_every_default_filled_in():
    found = parse(GOOD)
    exposure, accuracy = found.phases
    assert (found.carrier, found.hosts, found.order_seed, found.on_failure) == ("auto", "process", 7, "continue")
    assert (exposure.steps, exposure.warmup_steps, exposure.repeats, exposure.seed) == (8, 4, 3, 7)
    assert (accuracy.epochs, accuracy.steps, accuracy.warmup_steps) == (2, None, 0)
    assert exposure.workload["compute"] == "replayed"
    assert accuracy.workload["compute"] == "real"
    assert exposure.strategies[1]["beta"] == 0.3
    assert exposure.optimizer == {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}


@pytest.mark.parametrize(
    ("wrong", "line", "said"),
    [
        ("network: nowhere\nphase: []", 2, "unknown key (allowed: "),
        ("network: x\nphases: []", 2, "phases: there must be at least one phase"),
        ("phases:\n- {kind: replayed}", 1, "network: is missing"),
        ("network: x\nstrategies: [dpp]\nphases: [{kind: replayed, workload: resnet50-cifar100, steps: 1}]", 2,
         "did you mean 'ddp'?"),
        ("network: x\nstrategies: ['cpdp:k=0']\nphases: [{kind: replayed, workload: resnet50-cifar100, steps: 1}]", 2,
         "a whole number from 1"),
        ("network: x\nstrategies: [ddp]\nphases:\n  - kind: replayed\n    workload: digits\n    steps: 1", 5,
         "digits is real: its phase's kind is training, not replayed"),
        ("network: x\nstrategies: [ddp]\nphases:\n  - kind: training\n    workload: digitz\n    epochs: 1", 5,
         "did you mean 'digits'?"),
        ("network: x\nstrategies: [ddp]\nphases:\n  - kind: training\n    workload: digits", 4, "epochs: is missing"),
        ("network: x\nstrategies: [ddp]\nphases:\n  - {kind: training, workload: digits, epochs: 1,\n     steps: 9}", 5,
         "steps: excludes epochs"),
        ("network: x\nphases:\n  - kind: training\n    workload: digits\n    epochs: 1", 3,
         "strategies: is missing, here and at the top of the file"),
        ("network: x\nstrategies: [ddp]\nphases:\n  - {kind: training, workload: digits, epochs: 1.5}", 4,
         "epochs: '1.5' is not allowed: a whole number from 1"),
        ("network: x\nstrategies: [ddp]\ncarrier: tc\nphases:\n  - {kind: training, workload: digits, epochs: 1}", 3,
         "carrier: 'tc' is not allowed: one of auto, relay, netem"),
        ("network: x\nnetwork: y\nphases: []", 2, "written twice, first in line 1"),
        ("network: x\nstrategies: [ddp]\nphases:\n  - {kind: training, workload: digits, epochs: 1, timeout: 5}", 4,
         "timeout: "),
    ],
)  # fmt: skip
def test_a_fault_names_file_line_key_and_what_is_allowed(wrong, line, said):
    message = refused(wrong)
    assert f"exp.yaml:{line}: " in message
    assert said in message


def test_all_faults_of_a_file_are_told_at_once():
    message = refused("network: x\ncarrier: tc\nhosts: vm\nstrategies: [ddp]\nphases: [{kind: training}]")
    assert len(message.splitlines()) >= 4


@pytest.mark.parametrize("period", ["4", "4e0", "4.0", "40e-1"])
@pytest.mark.parametrize("beta", ["0.3", "3e-1", ".3", "0.30"])
def test_every_spelling_of_a_number_is_the_same_strategy(period, beta):
    text = GOOD.replace("k=4,beta=0.3", f"k={period},beta={beta}")
    assert parse(text).phases[0].strategies == parse(GOOD).phases[0].strategies


@pytest.mark.parametrize("steps", ["8", "8.0", "8e0", "0.8e1"])
def test_every_spelling_of_a_step_count_is_the_same(steps):
    assert parse(GOOD.replace("steps: 8", f"steps: {steps}")) == parse(GOOD)


def test_a_learning_rate_may_be_written_as_1e_2():
    text = GOOD.replace("epochs: 2", "epochs: 2, optimizer: {lr: 1e-2}")
    assert parse(text).phases[1].optimizer["lr"] == 0.01


def test_a_network_path_starts_at_the_experiments_folder():
    found = experiment.parse(textwrap.dedent(GOOD).replace("grid5000-nancy-sophia", "./net.yaml"), "/some/where/e.yaml")
    assert found.network == "/some/where/net.yaml"


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("ddp", ["ddp"]),
        ("ddp,cpdp:k=4,beta=0.3", ["ddp", "cpdp"]),
        ("localsgd:k=2,localsgd:k=4,cpdp:k=2,beta=0,ddp", ["localsgd", "localsgd", "cpdp", "ddp"]),
    ],
)
def test_a_comma_separates_strategies_and_their_options(flag, names):
    found = parse_strategies(flag)
    assert [spec["name"] for spec in found] == names


def test_a_wrong_strategy_in_a_flag_is_named():
    with pytest.raises(StrategyError, match="'sgdlocal' does not exist"):
        parse_strategies("ddp,sgdlocal:k=2")


def test_every_strategy_runs_once_in_every_repeat_before_the_next_repeat_starts():
    cells = [cell for cell in matrix.cells(parse(GOOD)) if cell.phase.name == "exposure"]
    assert [cell.repeat for cell in cells] == [1, 1, 2, 2, 3, 3]
    assert Counter((cell.label, cell.repeat) for cell in cells).most_common(1)[0][1] == 1
    assert len(cells) == 6


def test_the_order_is_drawn_from_the_recorded_seed_and_no_other():
    text = GOOD.replace("repeats: 3", "repeats: 20")
    first, again = (matrix.cells(parse(text)) for _ in range(2))
    other = matrix.cells(parse(text.replace("seed: 7", "seed: 7\n    order_seed: 8")))
    assert [cell.id for cell in first] == [cell.id for cell in again]
    assert [cell.label for cell in first] != [cell.label for cell in other]
    assert len({tuple(c.label for c in first if c.repeat == r) for r in range(1, 21)}) > 1


def test_cells_of_a_repeat_share_a_seed_and_repeats_differ():
    seeds = {cell.repeat: cell.seed for cell in matrix.cells(parse(GOOD)) if cell.phase.name == "exposure"}
    assert seeds == {1: 7, 2: 8, 3: 9}


def test_ids_are_unique_ordered_and_fit_a_file_name():
    ids = [cell.id for cell in matrix.cells(parse(GOOD))]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {one[:3] for one in ids} == {f"{n:02d}-" for n in range(1, len(ids) + 1)}
    assert any(one.endswith("-cpdp-k4-r3") for one in ids)


def test_a_label_is_as_short_as_it_may_be():
    same = parse_strategies("cpdp:k=4,beta=0.3,cpdp:k=4,beta=0.5,ddp")
    labels = matrix.label_all(same)
    assert labels[2] == "ddp"
    assert labels[0] != labels[1]
    assert "beta=0.5" in labels[1]
    assert matrix.label_all(same[1:]) == ["cpdp K=4", "ddp"]


def test_the_same_strategy_twice_is_refused():
    with pytest.raises(ExperimentError, match="listed twice; use repeats"):
        matrix.label_all(parse_strategies("ddp,ddp"))


def test_resolved_json_holds_all_that_is_needed_to_run_again():
    found = parse(GOOD)
    profile = load_profile(found.network)
    stored = json.loads(json.dumps(matrix.resolve(found, profile, {"torch": "2.14.1"})))
    assert experiment.from_json(matrix.unresolve(stored)) == found
    assert stored["experiment"]["network"]["text"] == profile.text
    assert len(stored["cells"]) == 6 + 2


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("steps: 8", "steps: 9"), "experiment.phases[0].steps: 8 there, 9 here"),
        (("beta=0.3", "beta=0.4"), "experiment.phases[0].strategies[1].beta: 0.3 there, 0.4 here"),
        (("seed: 7", "seed: 8"), "experiment.phases[0].seed: 7 there, 8 here"),
    ],
)
def test_a_resume_with_another_configuration_is_refused_and_names_the_key(change, key):
    old, new = (parse(text) for text in (GOOD, GOOD.replace(*change)))
    profile = load_profile(old.network)
    with pytest.raises(ExperimentError) as error:
        matrix.check_resumable(matrix.resolve(old, profile, {}), matrix.resolve(new, profile, {}), "runs/x")
    assert key in str(error.value)


def test_a_resume_with_another_torch_is_refused_but_another_commit_is_not():
    found = parse(GOOD)
    profile = load_profile(found.network)
    old = matrix.resolve(found, profile, {"torch": "2.14.1", "commit": "aaa"})
    matrix.check_resumable(old, matrix.resolve(found, profile, {"torch": "2.14.1", "commit": "bbb"}), "runs/x")
    with pytest.raises(ExperimentError, match=r'versions\.torch: "2\.14\.1" there, "2\.15" here'):
        matrix.check_resumable(old, matrix.resolve(found, profile, {"torch": "2.15", "commit": "aaa"}), "runs/x")


def test_the_shipped_experiment_is_the_papers_matrix():
    found, _text = experiment.load("nancy-sophia")
    exposure, accuracy = found.phases
    assert matrix.label_all(exposure.strategies) == ["ddp", "localsgd K=2", "localsgd K=4", "cpdp K=2", "cpdp K=4"]
    assert (exposure.steps, exposure.warmup_steps, exposure.repeats) == (12, 4, 3)
    assert {spec["beta"] for spec in exposure.strategies if spec["name"] == "cpdp"} == {0.3}
    assert accuracy.kind == "training"
    assert all(exposure.steps % spec.get("period", 1) == 0 for spec in exposure.strategies)


def test_an_unknown_experiment_names_the_shipped_ones():
    with pytest.raises(ExperimentError, match="nancy-sophia"):
        experiment.load("nancy-sofia")


def test_an_experiment_made_from_flags_is_written_as_a_file_that_says_the_same():
    found = parse(GOOD.replace("seed: 7", "seed: 7\n    source: \"a: 'b' # c\""))
    assert experiment.parse(experiment.render(found), "exp.yaml") == found


def test_an_optimizer_is_checked_with_its_line_before_anything_runs():
    adamw = parse(GOOD.replace("epochs: 2", "epochs: 2, optimizer: {name: adamw, lr: 4e-4, beta2: 0.95}"))
    assert adamw.phases[1].optimizer == {"name": "adamw", "lr": 4e-4, "beta2": 0.95}
    wrong = {
        "{name: adamw, momentum: 0.9}": "optimizer adamw: no option 'momentum'; valid: lr, weight_decay, beta1",
        "{name: lion}": "optimizer: 'lion' does not exist here; valid: sgd, adam, adamw",
        "{name: adam, beta1: 1}": "beta1: 1.0 is not allowed; a number from 0 to below 1",
        "{momentum: 0, nesterov: true}": "nesterov: true needs a momentum above 0",
    }
    for text, message in wrong.items():
        with pytest.raises(ExperimentError, match=r"optimizer.*" + re.escape(message)):
            parse(GOOD.replace("epochs: 2", f"epochs: 2, optimizer: {text}"))


@pytest.mark.parametrize("where", ["the phase", "the top"])
def test_a_strategy_that_follows_the_loss_is_refused_in_a_replayed_phase(where):
    listed = "strategies: [adacomm], " if where == "the phase" else ""
    text = GOOD.replace("kind: replayed", f"{listed}kind: replayed", 1)
    if where == "the top":
        text = re.sub(r"strategies: \[.*?\]", "strategies: [adacomm]", text, count=1, flags=re.S)
    with pytest.raises(ExperimentError, match="adacomm follows the training loss, and a replayed phase has none"):
        parse(text)
