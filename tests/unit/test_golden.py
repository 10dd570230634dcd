"""Parameter histories as they were when each strategy had been proven: a change of a rule, however small, shows here.

`WRITE_GOLDEN=1 pytest tests/unit/test_golden.py` writes them anew, for a rule that was changed on purpose.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.unit.problem import train
from tests.unit.ranks import run_ranks
from tests.unit.test_contract import SPECS
from tests.unit.test_streaming import stream

FILE = Path(__file__).parent / "golden_histories.json"
RATES = [0.1] * 9 + [0.05] * 8
STEPS = (0, 3, 8, 12, 16)


def history(rank, strategy):
    os.environ["NETLAB_SITE"] = ["a", "b", "b"][rank]
    if strategy.startswith("streaming"):  # of three layers
        seen = stream(rank, strategy)
    else:
        seen = train(rank, strategy, RATES, optimizer="0.8", steps_per_epoch=10)
    return [seen[step].ravel().tolist() for step in STEPS]


@pytest.mark.parametrize("strategy", SPECS)
def test_a_strategy_takes_the_path_it_took(strategy):
    found = run_ranks(3, history, strategy)
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("WRITE_GOLDEN"):
        golden[strategy] = found
        FILE.write_text(json.dumps(golden, indent=None, separators=(",", ":")).replace('],"', '],\n"') + "\n")
    assert np.allclose(found, golden[strategy], rtol=0, atol=1e-9), strategy


def test_every_history_is_of_a_strategy_that_is_proven():
    assert set(json.loads(FILE.read_text())) == set(SPECS)
