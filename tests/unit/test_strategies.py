"""Names, parameters and the spellings that mean the same strategy."""

import json
import subprocess
import sys

import pytest

from cpdp import strategies
from cpdp.errors import StrategyError
from cpdp.strategies import from_mapping, parse


@pytest.mark.parametrize(
    "text", ["cpdp:k=4,beta=0.3", "CPDP:K=4", "cpdp: period = 4e0 , beta = 3e-1", "cpdp:tau=4.0,beta=.3"]
)
def test_every_spelling_of_the_same_numbers_is_the_same_strategy(text):
    spec = parse(text)
    assert spec == parse("cpdp")
    assert dict(spec.values)["period"] == 4
    assert isinstance(dict(spec.values)["period"], int)
    assert dict(spec.values)["beta"] == 0.3
    assert spec.label == "cpdp:k=4,beta=0.3"


def test_text_and_mapping_mean_the_same():
    spec = parse("localsgd:k=2,warmup_epochs=5")
    assert from_mapping({"name": "localsgd", "period": 2, "warmup_epochs": "5"}) == spec
    assert from_mapping(spec.to_json()) == spec
    assert parse(spec.label) == spec
    assert spec.label == "localsgd:k=2,warmup_epochs=5"


def test_a_label_shows_what_is_not_default():
    assert parse("ddp").label == "ddp"
    assert parse("ddp:bucket_mb=50,find_unused=yes").label == "ddp:bucket_mb=50,find_unused=true"


@pytest.mark.parametrize("name", ["localsgd", "local_sgd", "local-sgd", "LocalSGD"])
def test_other_names_of_local_sgd(name):
    assert parse(f"{name}:k=2").name == "localsgd"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cdpp", r"'cdpp' does not exist; valid: ddp, localsgd, cpdp, .* \(did you mean 'cpdp'\?\)"),
        ("", "'' does not exist"),
        ("cpdp:bata=0.3", r"no parameter 'bata'; valid: .*did you mean 'beta'"),
        ("ddp:k=4", "no parameter 'k'; valid: bucket_mb, find_unused"),
        ("cpdp:k", "'k' is not key=value"),
        ("cpdp:k=", "'k=' is not key=value"),
        ("cpdp:", "is not key=value"),
        ("cpdp:k=4,k=2", "'k' is given twice"),
        ("cpdp:k=4,tau=2", "'period' is given twice"),
        ("cpdp:k=0", "period: '0' is not allowed; a whole number from 1 to 1000000"),
        ("cpdp:k=2.5", "period: '2.5' is not allowed"),
        ("cpdp:k=four", "period: 'four' is not allowed"),
        ("cpdp:k=1_0", "period: '1_0' is not allowed"),
        ("cpdp:k=４", "is not allowed"),
        ("cpdp:k=-4", "is not allowed"),
        ("cpdp:beta=1", "beta: '1' is not allowed; a number from 0 to below 1"),
        ("cpdp:beta=nan", "is not allowed"),
        ("cpdp:beta=1e999", "is not allowed"),
        ("slowmo:buffers=maybe", "buffers: 'maybe' is not allowed; one of reset, keep, average"),
        ("cpdp:epoch_end=maybe", "epoch_end: 'maybe' is not allowed; true or false"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(text, message):
    with pytest.raises(StrategyError, match=message):
        parse(text)


def test_a_boolean_is_not_a_number_and_a_name_is_needed():
    with pytest.raises(StrategyError, match="period: True is not allowed"):
        from_mapping({"name": "cpdp", "period": True})
    with pytest.raises(StrategyError, match="'name' is missing"):
        from_mapping({"period": 4})


def test_the_catalogue_is_json_and_its_defaults_are_allowed():
    entries = json.loads(json.dumps(strategies.catalogue(), allow_nan=False))
    assert [entry["name"] for entry in entries] == list(strategies.names())
    for entry in entries:
        assert entry["source"]
        spec = from_mapping({"name": entry["name"], **{p["name"]: p["default"] for p in entry["parameters"]}})
        assert spec == parse(entry["name"])


def test_describing_strategies_does_not_load_torch():
    code = "import sys; from cpdp import strategies; strategies.catalogue(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
