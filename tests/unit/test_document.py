"""The document reader: a scalar is the text that was written, every fault has its place, nothing is a traceback."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.document import MAX_CHARACTERS, MAX_DEPTH, Items, Scalar, Table, parse_document
from netlab.errors import DocumentError
from netlab.fields import MAX_PROBLEMS, Fields, Problems, read_fields
from netlab.units import Delay, Rate


def plain(node):
    """The tree without its places."""
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Items):
        return [plain(item) for item in node.items]
    return {key: plain(value) for key, value in node.entries.items()}


def read(text):
    return plain(parse_document(text, "f.yaml"))


def fault(text):
    with pytest.raises(DocumentError) as caught:
        parse_document(text, "f.yaml")
    (problem,) = caught.value.problems
    return problem


def fields(text, keys=("a", "b", "rate"), later=(), hints=None):
    problems = Problems()
    reader = read_fields(parse_document(text, "f.yaml"), problems, keys, later, hints)
    return reader, problems


def faults(problems):
    return [text for _, text in problems.found]


@pytest.mark.parametrize(
    "text",
    [
        "no",
        "yes",
        "null",
        "~",
        "1e9",
        "1.0e+9",
        "010",
        "0x10",
        "1:30",
        "1_000",
        "2026-01-01",
        ".inf",
        ".nan",
        "=",
        "<<",
    ],
)
def test_a_scalar_stays_the_text_that_was_written(text):
    assert read(f"a: {text}") == {"a": text}
    assert read(f"a: '{text}'") == {"a": text}
    assert read(f"{text}: a") == {text: "a"}


def test_the_order_of_keys_is_the_order_of_the_file():
    assert list(read("{z: 1, a: 2, m: {y: 1, b: 2}}")) == ["z", "a", "m"]


def test_every_node_knows_its_line_and_the_keys_that_lead_to_it():
    root = parse_document("sites:\n  a: {workers: 1}\nlinks:\n  - rtt: 1ms\n  - rate: x\n", "f.yaml")
    assert isinstance(root, Table)
    second = root.entries["links"].items[1]
    assert second.entries["rate"].place.problem("no") == "f.yaml:5: links[1].rate: no"
    assert root.entries["sites"].entries["a"].entries["workers"].place.problem("no") == "f.yaml:2: sites.a.workers: no"


def test_an_odd_key_is_quoted_in_messages_so_that_one_fault_stays_one_line():
    root = parse_document('"a\\nb": {c: 1}', "f.yaml")
    assert root.entries["a\nb"].entries["c"].place.problem("no") == "f.yaml:1: 'a\\nb'.c: no"


def test_a_byte_order_mark_is_ignored():
    assert read("\ufeffa: 1") == {"a": "1"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f.yaml:1: the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a: written twice, first in line 1"),
        ("x:\n  rate: 1\n  'rate': 2\n", "f.yaml:3: x.rate: written twice, first in line 2"),
        ("a: &x 1\nb: *x\n", "f.yaml:1: a: anchors (&) and aliases (*) are not accepted"),
        ("a: *x\n", "f.yaml:1: a: anchors (&) and aliases (*) are not accepted"),
        ("a: {<<: *x}\n", "anchors (&) and aliases (*) are not accepted"),
        ("&x a: 1\n", "anchors (&) and aliases (*) are not accepted"),
        ("a: !!python/object:os.system x\n", "f.yaml:1: a: the tag 'tag:yaml.org,2002:python/object:os.system'"),
        ("a: ! x\n", "f.yaml:1: a: the tag '!'"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: a second document starts"),
        ("? [a, b]\n: 1\n", "f.yaml:1: a list or mapping used as a key"),
        ("a:\n\t- 1\n", "f.yaml:2: not valid YAML: a tab cannot indent"),
        ("a: [1, 2\n", "f.yaml:2: not valid YAML: while parsing a flow sequence expected ',' or ']'"),
        ("a: 'x\n", "f.yaml:2: not valid YAML: while scanning a quoted scalar found unexpected end of stream"),
        ("a: b: c\n", "f.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("a: 1\n\x00", "f.yaml:2: character '\\x00' is not allowed in YAML"),
        ("a: \ud800", "f.yaml:1: character '\\ud800' is not allowed in YAML"),
        ('a: "\\ud800"', "f.yaml:1: a: character '\\ud800' is not allowed"),
        ('a: "\\e[31m"', "f.yaml:1: a: character '\\x1b' is not allowed"),
        ('a: "\\x9b31m"', "f.yaml:1: a: character '\\x9b' is not allowed"),
        ('b: 1\na: "\\UFFFFFFFF"', "f.yaml:2: not valid YAML: a number is out of range"),
        ("%YAML 9.9\n---\na: 1\n", "f.yaml:1: not valid YAML: found incompatible YAML document"),
        ("%YAML 1." + "9" * 5000 + "\n---\na: 1\n", "f.yaml:1: not valid YAML: a number is out of range"),
        ("a: " + "x" * MAX_CHARACTERS, f"f.yaml:1: longer than {MAX_CHARACTERS} characters"),
    ],
)
def test_a_malformed_document_is_one_line_with_file_and_line(text, problem):
    assert problem in fault(text)
    assert "\n" not in fault(text)


@pytest.mark.parametrize("bracket", ["[", "{a: ", "- ", "? ", "!!seq [", "{", "[{"])
def test_huge_nesting_is_refused_and_not_recursed_into(bracket):
    assert "f.yaml:1:" in fault(bracket * 20_000)


def test_nesting_up_to_the_limit_is_read():
    assert read("[" * MAX_DEPTH + "x" + "]" * MAX_DEPTH) is not None
    assert f"nested deeper than {MAX_DEPTH} levels" in fault("[" * (MAX_DEPTH + 1) + "x" + "]" * (MAX_DEPTH + 1))


def test_laughing_aliases_never_unfold():
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert "aliases" in fault("\n".join(lines))


def test_an_unknown_key_names_the_allowed_ones_and_the_nearest():
    _, problems = fields("a: 1\nrat: 2\nzzz: 3\n")
    assert faults(problems) == [
        'f.yaml:2: rat: unknown key (allowed: a, b, rate); did you mean "rate"?',
        "f.yaml:3: zzz: unknown key (allowed: a, b, rate)",
    ]


def test_a_key_of_a_later_version_is_refused_in_these_words_with_its_value():
    _, problems = fields("loss: 1%", later=("loss",))
    assert faults(problems) == [
        "f.yaml:1: loss: '1%': loss is not supported yet by this version (supported here: a, b, rate)"
    ]


def test_a_popular_mistake_gets_its_own_hint():
    _, problems = fields("bandwidth: 1", hints={"bandwidth": "write rate"})
    assert faults(problems) == ["f.yaml:1: bandwidth: unknown key (allowed: a, b, rate); write rate"]


def test_all_faults_are_raised_at_once_in_the_order_of_the_file():
    reader, problems = fields("c: 1\na: x\nb: 5\nrate: 1m\n")
    reader.unit("rate", Rate)
    reader.integer("b", 0, 4)
    reader.number("a", 0, 1)
    reader.number("a", 0, 1)  # the same fault twice counts once
    with pytest.raises(DocumentError) as caught:
        problems.raise_as(DocumentError)
    assert [line.split(": ")[:2] for line in caught.value.problems] == [
        ["f.yaml:1", "c"],
        ["f.yaml:2", "a"],
        ["f.yaml:3", "b"],
        ["f.yaml:4", "rate"],
    ]
    assert str(caught.value).count("\n") == 3


def test_a_file_of_nothing_but_faults_does_not_bury_its_reader():
    _, problems = fields("\n".join(f"k{n}: 1" for n in range(MAX_PROBLEMS + 7)))
    with pytest.raises(DocumentError) as caught:
        problems.raise_as(DocumentError)
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    assert caught.value.problems[-1] == "... and 7 more"


def test_no_faults_raise_nothing():
    Problems().raise_as(DocumentError)


@pytest.mark.parametrize("text", ["4", "4e0", "4.0", "40e-1", "'4'", "+4"])
def test_an_integer_accepts_every_spelling_of_the_same_number(text):
    reader, problems = fields(f"a: {text}")
    assert reader.integer("a", 1, 10) == 4
    assert not problems.found


@pytest.mark.parametrize(
    "text", ["4.5", "0", "11", "04", "four", "4_0", "0x4", "1e99", "-1", "''", "[4]", "{b: 4}", ""]
)
def test_what_is_no_integer_in_range_is_a_fault_that_says_what_is(text):
    reader, problems = fields(f"a: {text}")
    assert reader.integer("a", 1, 10) is None
    assert len(problems.found) == 1
    assert faults(problems)[0].startswith("f.yaml:1: a: ")


@pytest.mark.parametrize(
    ("text", "value"), [("3e-1", 0.3), ("1e-2", 0.01), ("0.3", 0.3), (".3", 0.3), ("1", 1.0), ("0", 0)]
)
def test_a_number_accepts_every_spelling(text, value):
    reader, problems = fields(f"a: {text}")
    assert reader.number("a", 0, 1) == value
    assert not problems.found


@pytest.mark.parametrize("text", ["nan", ".nan", "inf", "1.1", "-0.1", "1,5", "one"])
def test_what_is_no_number_in_range_is_a_fault(text):
    reader, problems = fields(f"a: {text}")
    assert reader.number("a", 0, 1) is None
    assert "a number from 0 to 1" in faults(problems)[0]


def test_only_true_and_false_are_booleans():
    assert fields("a: true")[0].boolean("a") is True
    assert fields("a: false")[0].boolean("a") is False
    for text in ("yes", "no", "on", "off", "1", "0", "True", "null"):
        reader, problems = fields(f"a: {text}")
        assert reader.boolean("a") is None
        assert faults(problems) == [f"f.yaml:1: a: {text!r} is not allowed: true or false"]


def test_an_absent_key_is_none_and_a_fault_only_when_it_is_required():
    reader, problems = fields("b: 1")
    assert reader.string("a") is None
    assert reader.unit("a", Delay) is None
    assert reader.items("a") is None
    assert reader.table("a") is None
    assert reader.fields("a", ("x",)) is None
    assert not problems.found
    assert reader.string("a", required=True) is None
    assert faults(problems) == ["f.yaml:1: a: is missing"]


def test_the_wrong_shape_is_a_fault_that_says_what_was_found():
    reader, problems = fields("a: [1]\nb: {x: 1}\nrate: 3")
    assert reader.string("a") is None
    assert reader.items("b") is None
    assert reader.table("rate") is None
    assert reader.fields("rate", ("x",)) is None
    assert faults(problems) == [
        "f.yaml:1: a: a list found where a value is wanted",
        "f.yaml:2: b: a mapping found where a list is wanted",
        "f.yaml:3: rate: '3' found where a mapping is wanted",
        "f.yaml:3: rate: '3' found where a mapping is wanted (keys: x)",
    ]


def test_a_pattern_is_matched_as_a_whole():
    reader, problems = fields("a: cubic\nb: 'cubic\n\n  x'")
    assert reader.string("a", pattern="[a-z]+", allowed="letters") == "cubic"
    assert reader.string("b", pattern="[a-z]+", allowed="letters") is None
    assert faults(problems) == ["f.yaml:2: b: 'cubic\\nx' is not allowed: letters"]


def test_a_top_level_that_is_no_mapping_is_a_fault():
    for text, what in [("- a\n- b\n", "a list"), ("word", "'word'"), ("null", "'null'"), ("''", "nothing")]:
        reader, problems = fields(text)
        assert reader is None
        assert faults(problems) == [f"f.yaml:1: {what} found where a mapping is wanted (keys: a, b, rate)"]


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8)
TREES = st.recursive(WORDS, lambda tree: st.lists(tree, max_size=4) | st.dictionaries(WORDS, tree, max_size=4))


@given(TREES)
def test_json_reads_back_as_the_same_tree(tree):
    assert read(json.dumps(tree, ensure_ascii=False)) == tree


SOUP = [
    "a",
    "b:",
    ":",
    "-",
    "?",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&",
    "*",
    "!",
    "|",
    ">",
    "'",
    "%",
    "@",
    "`",
    "#",
    "---",
    "...",
    "<<:",
    "!!map",
    "\\x",
    "\\U0011FFFF",
    "1e9",
    "~",
]
MORE_SOUP = [" ", "\n", "\n  ", "\t", '"', "\ufeff", "\x85", "\u2028", "\x07", "%YAML 1.3\n", "%TAG ! x\n"]
YAML_SOUP = st.lists(st.sampled_from(SOUP + MORE_SOUP), max_size=40).map("".join)


@given(st.one_of(YAML_SOUP, st.text(), st.binary().map(lambda data: data.decode("latin-1"))))
def test_any_text_is_a_tree_or_one_readable_line(text):
    try:
        parse_document(text, "f.yaml")
    except DocumentError as error:
        problems = error.problems
    else:
        return
    assert len(problems) == 1
    assert problems[0].startswith("f.yaml:")
    assert problems[0].isprintable()


def test_fields_are_what_the_reader_hands_out():
    assert isinstance(fields("a: 1")[0], Fields)
