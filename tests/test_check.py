"""`sglang-oea check`: one true run, and what it finds wrong with host, settings and checkpoint."""

import os
import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from sglang_oea import check, cli
from sglang_oea.plugin import contract


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No variable of the shell that runs the tests decides."""
    for name in list(os.environ):
        if name.startswith("SGLANG_OEA_") or name in ("SGLANG_PLUGINS", "SGLANG_PLATFORM"):
            monkeypatch.delenv(name)


def verdicts(lines) -> list[tuple[str, str]]:
    """Verdict and subject of each line."""
    return [(line.verdict, line.subject) for line in lines]


def entry_points(monkeypatch, *points: tuple[str, str, str]) -> None:
    """Pretend that these `(group, name, distribution)` are installed."""

    def found(group):
        made = (SimpleNamespace(name=n, value="m:f", dist=SimpleNamespace(name=d), group=g)
                for g, n, d in points)  # fmt: skip
        return [point for point in made if point.group == group]

    monkeypatch.setattr(check.importlib.metadata, "entry_points", found)


def _seconds_of_children() -> float:
    # of the processor, so that a busy machine does not fail the test
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_a_true_run():
    """Holds that the installed SGLang meets the whole contract, and that saying so is quick."""
    before = _seconds_of_children()
    done = subprocess.run(
        [sys.executable, "-m", "sglang_oea.cli", "check"],
        env=os.environ | {"SGLANG_OEA_K0": "4"},
        capture_output=True,
        text=True,
    )
    seconds = _seconds_of_children() - before
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert sum(line.startswith("[ok  ] contract: ") for line in lines) == len(contract.items())
    assert "[ok  ] plugin: oea -> sglang_oea.plugin:register" in lines
    assert any(line.startswith("[ok  ] settings: k0=4 modes=decode") for line in lines)
    assert lines[-1] == "sglang_oea can run here" and "[FAIL]" not in done.stdout
    assert seconds < 30


def test_settings(monkeypatch):
    """Holds that off is a warning, good settings are spelled out, and bad ones fail."""
    assert verdicts(check.settings()) == [("warn", "settings")]
    monkeypatch.setenv("SGLANG_OEA_K0", "1:8,16:4")
    monkeypatch.setenv("SGLANG_OEA_MODES", "verify,decode")
    monkeypatch.setenv("SGLANG_OEA_MAX_RANK", "32")
    (line,) = check.settings()
    said = "k0=1:8,16:4 modes=decode,verify impl=auto max_rows=256 max_rank=32 strict=1 trace=off"
    assert line == ("ok", "settings", said, "")
    for name, value in (("K0", "four"), ("STRICT", "maybe"), ("KO", "4")):
        with monkeypatch.context() as patch:
            patch.setenv(f"SGLANG_OEA_{name}", value)
            (line,) = check.settings()
            assert line.verdict == "FAIL" and f"SGLANG_OEA_{name}" in line.found


def test_any_fail_exits_1(monkeypatch, capsys):
    """Holds the exit status, that the rest is still reported, and that a fix follows its line."""
    monkeypatch.setattr(contract, "CONTRACT", ())
    monkeypatch.setenv("SGLANG_OEA_K0", "4")
    assert cli.main(["check"]) == 0
    assert capsys.readouterr().out.endswith("\nsglang_oea can run here\n")
    monkeypatch.setenv("SGLANG_OEA_K0", "four")
    monkeypatch.setattr(contract, "CONTRACT", (contract.Item("json.nothing", (), "x", "y"),))
    assert cli.main(["check"]) == 1
    out = capsys.readouterr().out
    assert "[FAIL] settings: sglang_oea: SGLANG_OEA_K0 is not valid" in out
    assert "[warn] contract: json.nothing is not there" in out
    assert "\n       -> unavailable: y\n" in out
    assert out.endswith("\nsglang_oea cannot run here\n")


@pytest.mark.parametrize(
    ("plugins", "fails"),
    [("", False), ("oea", False), ("x, oea", False), ("x", True), ("OEA", True), ("oea2", True)],
)
def test_sglang_plugins(monkeypatch, plugins, fails):
    """Holds that a list of admitted plugins without this one is found: SGLang would say nothing."""
    entry_points(monkeypatch, (check.GROUP, "oea", "sglang-oea"))
    monkeypatch.setenv("SGLANG_PLUGINS", plugins)
    expected = [("ok", "plugin")] + [("FAIL", "SGLANG_PLUGINS")] * fails
    assert verdicts(check.plugin()) == expected


@pytest.mark.parametrize(
    ("platform", "distribution", "fails"),
    [
        ("", "sglang-oea", False),
        ("cpu", "sglang-oea", False),
        ("npu", "sglang-oea", True),
        ("npu", "another", False),
    ],
)
def test_sglang_platform(monkeypatch, platform, distribution, fails):
    """Holds that a platform of the plugin's own distribution that is not selected is found."""
    points = [(check.GROUP, "oea", "sglang-oea"), ("sglang.srt.platforms", "cpu", distribution)]
    entry_points(monkeypatch, *points)
    monkeypatch.setenv("SGLANG_PLATFORM", platform)
    expected = [("ok", "plugin")] + [("FAIL", "SGLANG_PLATFORM")] * fails
    assert verdicts(check.plugin()) == expected


def test_plugin_that_is_not_installed(monkeypatch):
    """Holds that a package without its entry point, as on a bare PYTHONPATH, fails."""
    entry_points(monkeypatch, (check.GROUP, "other", "sglang-oea"))
    assert verdicts(check.plugin()) == [("FAIL", "plugin")]


def test_versions(monkeypatch):
    """Holds that a missing SGLang fails, a missing extra warns, another release is untested."""
    have = {"torch": "2", "triton": "3", "transformers": "5", "sglang-kernel": "1"}

    def version(name):
        if name not in have:
            raise PackageNotFoundError(name)
        return have[name]

    monkeypatch.setattr(check.importlib.metadata, "version", version)
    lines = dict((subject, verdict) for verdict, subject in verdicts(check.versions()))
    assert (lines["sglang"], lines["flashinfer-python"]) == ("FAIL", "warn")
    assert lines["torch"] == "ok" and "sglang release" not in lines
    assert list(check.contract_items()) == []
    have["sglang"] = "0.5.99"
    assert ("warn", "sglang release") in verdicts(check.versions())


def test_patched_sglang_needs_no_plugin(monkeypatch):
    """Holds that the patch is named; whether the plugin could be found does not matter then."""
    monkeypatch.setattr(contract, "carries_patch", lambda: True)
    entry_points(monkeypatch)
    assert verdicts(check.plugin()) == [("ok", "patch")]


def test_contract_items(monkeypatch):
    """Holds that what is missing is named: a module, an attribute, a parameter; optional warns."""
    items = (
        contract.Item("json.dumps", ("obj", "indent"), "writing"),
        contract.Item("json.dumps", ("obj", "colour"), "writing"),
        contract.Item("json.dump_all", (), "writing"),
        contract.Item("no_such_module.f", (), "writing", "live reading"),
    )
    monkeypatch.setattr(contract, "items", lambda: items)
    lines = list(check.contract_items())
    assert [line.verdict for line in lines] == ["ok", "FAIL", "FAIL", "warn"]
    assert lines[1].found == "json.dumps has no colour"
    assert "json.dump_all is not there" in lines[2].found and "0.5.23" in lines[2].fix
    assert lines[3].fix == "unavailable: live reading"
    assert contract.problems(items) == [lines[1].found, lines[2].found]
