"""Quantities: one text, one value, exactly; everything else is refused with words that help."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netlab.errors import NetlabError, UnitError, UserError
from netlab.units import Delay, Duration, Fraction, Rate, Size, parse_number

UNITS = (Delay, Duration, Rate, Size, Fraction)


def attempt(unit, text):
    """(quantity, "") or (None, refusal); any other exception fails the test."""
    try:
        return unit.parse(text), ""
    except UnitError as error:
        return None, str(error)


ONE_TENTH_SECOND = [
    "100ms",
    "100 ms",
    "0.1s",
    ".1s",
    "100000us",
    "100000\N{MICRO SIGN}s",
    "100000\N{GREEK SMALL LETTER MU}s",
    "1e2ms",
    " 100ms ",
    "+100ms",
]


@pytest.mark.parametrize("text", ONE_TENTH_SECOND)
def test_all_spellings_of_a_tenth_of_a_second_are_the_same_nanoseconds(text):
    assert Delay.parse(text).ns == 100_000_000


REFUSED_DELAYS = {
    "100": "no unit",
    "0": "no unit",
    "1m": "minutes or milliseconds",
    "1,5ms": "is not a time",
    "1 0ms": "is not a time",
    "1_0ms": "is not a time",
    "１００ms": "is not a time",
    "nanms": "is not a time",
    "infs": "is not a time",
    "-5ms": "cannot be negative",
    "": "is not a time",
    " ": "is not a time",
    "ms": "is not a time",
    "5 ms 3us": "is not a time",
    "5ms3us": "is not a time",
    "10MS": 'did you mean "ms"',
    "1Ms": 'did you mean "ms"',
    "0x10ms": "is not a time",
    "1..5ms": "is not a time",
    "1\tms": "is not a time",
    "1\N{NO-BREAK SPACE}ms": "is not a time",
    "0.5ns": "would lose precision",
    "1.0000001ms": "would lose precision",
    "600.000000001s": "between 0s and 600s",
    "11min": "between 0s and 600s",
    "1e99s": "between 0s and 600s",
    "1e100s": "exponent",
    "1e999999999999999999s": "exponent",
    "1e-99s": "would lose precision",
    "1" * 100 + "ms": "is not a time",
}


@pytest.mark.parametrize(("text", "why"), REFUSED_DELAYS.items())
def test_a_delay_that_others_guess_at_is_refused_with_its_value_and_the_reason(text, why):
    with pytest.raises(UnitError, match=why) as caught:
        Delay.parse(text)
    assert repr(text)[:20] in str(caught.value)


def test_the_limits_of_a_delay_are_themselves_allowed():
    assert Delay.parse("0s").ns == 0
    assert Delay.parse("0ms") == Delay(0)
    assert Delay.parse("1ns").ns == 1
    assert Delay.parse("10min").ns == 600 * 10**9


def test_a_duration_may_be_longer_than_any_delay():
    assert Duration.parse("15min").ns == 900 * 10**9
    assert Duration.parse("2h").ns == 7200 * 10**9
    with pytest.raises(UnitError, match="between 0s and 2592000s"):
        Duration.parse("721h")


GIGABIT = ["1e9bit", "1.0e9bit", "1.0e+9bit", "1e3mbit", "1gbit", "1 Gbit", "1Gbit/s", "1000MBIT/S", "0.001tbit"]


@pytest.mark.parametrize("text", GIGABIT)
def test_all_spellings_of_a_gigabit_are_the_same_rate(text):
    assert Rate.parse(text).bps == 1_000_000_000


@pytest.mark.parametrize("text", ["1e9", "1.0e9", "1.0e+9", "1000000000"])
def test_a_bare_number_is_no_rate_however_it_is_spelled(text):
    with pytest.raises(UnitError, match="has no unit"):
        Rate.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1bit", "between 1kbit and 1tbit"),
        ("999bit", "between 1kbit and 1tbit"),
        ("0gbit", "between 1kbit and 1tbit"),
        ("1.000000000001tbit", "between 1kbit and 1tbit"),
        ("10mbps", "bytes per second to some tools"),
        ("10Mbps", "bytes per second to some tools"),
        ("10mb", "unknown unit"),
        ("10MB", "unknown unit"),
        ("10g", "unknown unit"),
        ("1000.5bit", "would lose precision"),
        ("-1gbit", "cannot be negative"),
        ("1\N{KELVIN SIGN}bit", "unknown unit"),
        ("1gbit/", "is not a rate"),
        ("1gbit/h", "is not a rate"),
    ],
)
def test_a_rate_that_is_ambiguous_or_out_of_range_is_refused(text, why):
    with pytest.raises(UnitError, match=why):
        Rate.parse(text)


def test_the_limits_of_a_rate_are_themselves_allowed():
    assert Rate.parse("1kbit").bps == 1000
    assert Rate.parse("8kbit").bps == 8000
    assert Rate.parse("64kbit").bps == 64_000
    assert Rate.parse("1tbit").bps == 10**12


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1500B", 1500),
        ("2MB", 2_000_000),
        ("2 MiB", 2_097_152),
        ("64KiB", 65_536),
        ("1.5KiB", 1536),
        ("64kB", 64_000),
        ("64KB", 64_000),
        ("1GiB", 2**30),
        ("0B", 0),
        ("1e3B", 1000),
    ],
)
def test_sizes_know_powers_of_1000_from_powers_of_1024(text, size):
    assert Size.parse(text).bytes == size


@pytest.mark.parametrize("text", ["2Mb", "2mb", "64kb", "10b", "10", "1.5B", "-1B", "2000GiB", "1KIB"])
def test_a_size_that_could_be_bits_or_is_out_of_range_is_refused(text):
    with pytest.raises(UnitError):
        Size.parse(text)


@pytest.mark.parametrize("text", ["1%", "1 %", "0.01", "1e-2", ".01", "1.0e-2"])
def test_all_spellings_of_a_hundredth_are_the_same_fraction(text):
    assert Fraction.parse(text).ppb == 10_000_000


@pytest.mark.parametrize("text", ["", "%", "101%", "1.01", "-1%", "nan", "one", "1%%", "1e-10", "1,5%", "1", "1.0"])
def test_a_fraction_outside_0_to_1_or_finer_than_a_billionth_is_refused(text):
    with pytest.raises(UnitError):
        Fraction.parse(text)


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Delay(0), "0s"),
        (Delay(16_600_000), "16.6ms"),
        (Delay(8_300_001), "8.300001ms"),
        (Delay(999), "999ns"),
        (Delay(50_000), "50us"),
        (Delay(1_500_000_000), "1.5s"),
        (Rate(1_000_000_000), "1gbit"),
        (Rate(1_544_000), "1.544mbit"),
        (Size(1538), "1538B"),
        (Size(0), "0B"),
        (Size(262_144), "256KiB"),
        (Size(2_000_000), "2MB"),
        (Fraction(10_000_000), "1%"),
        (Fraction(1), "0.0000001%"),
        (Fraction(10**9), "100%"),
    ],
)
def test_printing_is_exact_and_uses_the_unit_a_person_would(quantity, text):
    assert str(quantity) == text


@given(st.integers(0, 600 * 10**9))
def test_a_printed_delay_reads_back_as_itself(ns):
    assert Delay.parse(str(Delay(ns))) == Delay(ns)


@given(st.integers(1000, 10**12))
def test_a_printed_rate_reads_back_as_itself(bps):
    assert Rate.parse(str(Rate(bps))) == Rate(bps)


@given(st.one_of(st.integers(0, 2**40), st.integers(0, 2**10).map(lambda n: n * 2**30)))
def test_a_printed_size_reads_back_as_itself(size):
    assert Size.parse(str(Size(size))) == Size(size)


@given(st.integers(0, 10**9))
def test_a_printed_fraction_reads_back_as_itself(ppb):
    assert Fraction.parse(str(Fraction(ppb))) == Fraction(ppb)


@given(st.decimals(0, 600, places=9), st.sampled_from(["s", " s", "e0s", "000s"]))
def test_decimal_seconds_are_never_rounded_through_a_float(seconds, unit):
    text = f"{seconds:f}{unit}"
    assert Delay.parse(text).ns == int(seconds * 10**9)


HOSTILE = st.one_of(
    st.text(),
    st.text(alphabet="0123456789.,eE+-_ \t%mnusbitkgGMBKi/µμ１\N{KELVIN SIGN}\x00\n", max_size=120),
    st.from_regex(r"[0-9.]{1,9}(e[+-]?[0-9]{1,12})? ?[a-zA-Z%/]{0,5}", fullmatch=True),
)


@given(st.sampled_from(UNITS), HOSTILE)
def test_any_text_is_a_quantity_or_a_readable_refusal(unit, text):
    quantity, refusal = attempt(unit, text)
    assert refusal.isprintable()
    assert len(refusal) < 500
    assert quantity is None or unit.parse(str(quantity)) == quantity


def test_a_unit_error_is_the_users_to_mend_and_also_a_value_error():
    assert issubclass(UnitError, UserError)
    assert issubclass(UnitError, NetlabError)
    assert issubclass(UnitError, ValueError)
    assert UnitError.exit_code == 2


@pytest.mark.parametrize("text", ["4", "4.0", "4e0", "+4", "40e-1", "0.4E1", " 4 "])
def test_all_spellings_of_a_plain_number_are_the_same(text):
    assert parse_number(text) == 4


@pytest.mark.parametrize("text", ["", "-", "--4", "4 4", "0x4", "4_0", "nan", "inf", "４", "1e", "4ms", "1e200"])
def test_what_is_no_plain_number_is_refused(text):
    with pytest.raises(UnitError):
        parse_number(text)
