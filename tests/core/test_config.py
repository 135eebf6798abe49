"""Settings: every good and bad value of every `SGLANG_OEA_*` variable, and what a refusal says."""

import dataclasses
import json

import pytest
from stubs import assert_refusal, make_config, read, refused

from sglang_oea.core import config

NAMES = ("K0", "MODES", "IMPL", "MAX_ROWS", "MAX_RANK", "STRICT", "TRACE", "TRACE_STEPS")


@pytest.mark.parametrize("k0", [None, "", " ", "0", "00", " 0 "])
def test_off(k0):
    """Holds that unset, empty and 0 mean off, whatever else is set."""
    assert read(**({} if k0 is None else {"K0": k0}), MODES="nonsense", TRACE="x") is None


def test_defaults():
    """Holds the defaults of the documented table."""
    got = read(K0="4")
    assert got.k0.shown == 4
    assert (got.modes, got.impl, got.max_rows) == (("decode",), "auto", 256)
    assert (got.max_rank, got.strict) == (None, True)
    assert (got.trace, got.trace_steps) == (None, 64)
    assert read(K0=" 4 ", **dict.fromkeys(NAMES[1:], "")) == got


@pytest.mark.parametrize("k0", [None, "0", "4"])
def test_misspelt_name(k0):
    """Holds that a misspelt name is refused with the nearest valid one, also while OEA is off."""
    settings = {} if k0 is None else {"K0": k0}
    refused("did you mean SGLANG_OEA_K0?", "SGLANG_OEA_KO=4", KO="4", **settings)
    refused("did you mean SGLANG_OEA_MODES?", MODE="decode", **settings)
    refused("did you mean SGLANG_OEA_MAX_RANK?", MAX_RANKS="", **settings)


def test_names_of_others_are_tolerated():
    """Holds that a variable of the repository's scripts does not stop a server."""
    assert read(K0="4", VENV="somewhere") == read(K0="4")


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        ("decode", ("decode",)),
        ("verify", ("verify",)),
        ("decode,verify", ("decode", "verify")),
        (" verify , decode ", ("decode", "verify")),
        ("decode,decode", ("decode",)),
    ],
)
def test_modes(text, modes):
    """Holds that modes come out in one order, so that equal settings are equal."""
    assert read(K0="4", MODES=text).modes == modes


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("MODES", [], ["prefill", "decode,", "decode;verify", "DECODE", "decode verify", ","]),
        ("IMPL", list(config.IMPLEMENTATIONS), ["cuda", "Auto", "auto,torch", "1"]),
        ("MAX_ROWS", ["1", "65536"], ["0", "-1", "65537", "1.5", "many", "²", "1e2"]),
        ("MAX_RANK", ["1", "32"], ["0", "-8", "1.5", "N", "²"]),
        ("STRICT", ["0", "1"], ["2", "yes", "true", "-1"]),
        ("TRACE", ["traces", "/a/b", "0/trace"], ["0", "1", "²"]),
        ("TRACE_STEPS", ["1", "5000"], ["0", "-1", "1.5", "all", "²"]),
    ],
)
def test_values(name, good, bad):
    """Holds which values each setting takes, and that the others are refused by name."""
    field = name.lower()
    for value in good:
        assert str(getattr(read(K0="4", **{name: value}), field)) in (value, str(value == "1"))
    for value in bad:
        refused(f"SGLANG_OEA_{name} is not valid", f"={value}\n", K0="4", **{name: value})


def test_strict_is_read_on_its_own():
    """Holds that what to do with a refusal is known before the rest parses."""
    assert config.is_strict({"SGLANG_OEA_K0": "four"})
    assert not config.is_strict({"SGLANG_OEA_K0": "four", "SGLANG_OEA_STRICT": " 0 "})


def test_refuse(caplog):
    """Holds that SGLANG_OEA_STRICT=0 turns a refusal into an error in the log, whole."""
    refusal = config.Refusal("it", where="here", got="this", expected="that", fix="do")
    assert_refusal(refusal, "sglang_oea: it", "SGLANG_OEA_STRICT=0 serves stock")
    with pytest.raises(SystemExit) as raised:
        config.refuse(refusal, strict=True)
    assert raised.value is refusal and not caplog.records
    config.refuse(refusal, strict=False)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("sglang_oea", "ERROR")
    assert str(refusal) in record.getMessage() and "stock SGLang is served" in record.getMessage()


def test_fingerprint():
    """Holds that ranks compare all that changes routing, and not what they tolerate or record."""
    base = make_config("4")
    changes = {
        "k0": make_config("5").k0,
        "modes": ("decode", "verify"),
        "impl": "torch",
        "max_rows": 128,
        "max_rank": 16,
        "strict": False,
        "trace": "folder",
        "trace_steps": 1,
    }
    # a new setting has to be put here, on one side or the other
    assert {field.name for field in dataclasses.fields(base)} == set(changes)
    changed = {name: dataclasses.replace(base, **{name: changes[name]}) for name in changes}
    for name in ("strict", "trace", "trace_steps"):
        assert changed.pop(name).fingerprint("v1") == base.fingerprint("v1")
    prints = [c.fingerprint("v1") for c in (base, *changed.values())]
    prints += [base.fingerprint("v2"), base.fingerprint(), base.fingerprint("v1", "torch")]
    assert len(set(prints)) == len(prints)


def test_fingerprint_sees_into_a_profile(tmp_path):
    """Holds that one path with two contents, as on two nodes, gives two fingerprints."""
    path, prints = tmp_path / "profile.json", set()
    for layers in ({}, {"3": 2}, {"4": 2}):
        path.write_text(json.dumps({"k0": 4, "layers": layers}))
        prints.add(read(K0=str(path)).fingerprint())
    assert len(prints) == 3


def test_config_is_frozen_and_hashable():
    """Holds that settings cannot change under a captured graph, and can be a key."""
    got = read(K0="1:8,16:4", MODES="decode,verify")
    assert hash(got) == hash(read(K0="1:8,16:4", MODES="decode,verify"))
    for name in ("k0", "max_rows", "strict"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(got, name, None)


def test_host_variable():
    """Holds that an unset variable of the host reads as empty."""
    environ = {"SGLANG_PLUGINS": "oea"}
    assert config.host_variable("SGLANG_PLUGINS", environ) == "oea"
    assert config.host_variable("SGLANG_PLATFORM", environ) == ""
