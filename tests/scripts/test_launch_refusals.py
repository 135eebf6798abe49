"""What the launchers refuse before minutes of loading: one line on standard error, exit 2."""

import json
import shutil
import sys

import pytest
from launchers import GLM5, QWEN3, run
from machine import said_once

PRINT = ("--dry-run", "--sglang-version")


@pytest.fixture
def python(tmp_path):
    """`python(version, ...)`: the path of a Python in which this SGLang is all there is.

    Importing SGLang fails in it: what is installed has to be seen without.
    """

    def with_sglang(version: str, *, oea: bool = False, patch: bool = False) -> str:
        site = tmp_path / "site"
        sources = site / "sglang" / "srt" / "layers" / "moe"
        # what a patch leaves behind that was reversed by hand
        (sources / "oea" / "__pycache__").mkdir(parents=True)
        if patch:
            (sources / "oea" / "__init__.py").touch()
        (site / "sglang" / "__init__.py").write_text("raise RuntimeError('imported')")
        _distribution(site, "sglang", version)
        if oea:
            (site / "sglang_oea").mkdir()
            (site / "sglang_oea" / "__init__.py").touch()
            (site / "sglang_oea" / "launch_server.py").touch()
            listed = _distribution(site, "sglang_oea", "0.1") / "entry_points.txt"
            listed.write_text("[sglang.srt.plugins]\noea = sglang_oea.plugin:register\n")
        made = tmp_path / "python"
        made.write_text(
            f'#!{shutil.which("bash")}\nPYTHONPATH="{site}" exec {sys.executable} -S "$@"'
        )
        made.chmod(0o755)
        return str(made)

    return with_sglang


def _distribution(site, name, version):
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


@pytest.mark.parametrize("script", [GLM5, QWEN3])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fast"], "unknown option --fast"),
        (["now"], "unknown option now"),
        (["--tp-size", "4"], "unknown option --tp-size"),
        (["--k0"], "--k0 expects a value"),
        (["--k0", ""], "--k0 expects a value"),
        (["--model", "--dry-run"], "--model expects a value"),
        (["--max-running", "many"], "--max-running expects a whole number"),
        (["--max-running=0"], "got '0'"),
        (["--port", "70000"], "--port expects a whole number from 1 to 65535, got '70000'"),
        (["--sglang-version", "0.5.9"], "add --dry-run"),
        ([*PRINT, "0.5.10.post1"], "no recipe for SGLang 0.5.10.post1"),
        ([*PRINT, "0.5.2"], "expected 0.5.9, 0.5.18 or 0.5.23"),
        ([*PRINT, "0.5.9", "--without", "tp-size"], "--without expects a flag"),
        ([*PRINT, "0.5.9", "--without", "--foo"], "--without --foo: the recipe has no such flag"),
        ([*PRINT, "0.5.9", "--", "--max-running-requests", "8"], "use --max-running, since"),
        ([*PRINT, "0.5.9", "--", "--max-running-requests=8"], "use --max-running, since"),
        ([*PRINT, "0.5.9", "--", "4"], "expected a flag of SGLang after --, got '4'"),
    ],
)
def test_bad_options(script, arguments, said):
    """Holds that a bad option is told at once, with what was expected."""
    done = run(script, *arguments)
    said_once(done, said)
    assert not done.stdout


@pytest.mark.parametrize("folder", ["/models/GLM-5", "./GLM-5", "~/GLM-5"])
def test_a_missing_folder(folder):
    """Holds that a path is not taken for a hub id, to fail long after."""
    said_once(run(GLM5, *PRINT, "0.5.23", "--model", folder), f"there is no folder {folder}")


def test_a_folder_without_a_checkpoint(tmp_path):
    """Holds that what checkpoint.py says of a folder is what the launcher says."""
    done = run(GLM5, *PRINT, "0.5.23", "--model", str(tmp_path), PYTHON=sys.executable)
    said_once(done, f"{tmp_path} has no config.json")


def test_mtp_without_an_mtp_layer(tmp_path):
    """Holds that MTP on a checkpoint without the layer is refused, folder or known hub id."""
    (tmp_path / "config.json").write_text(json.dumps({"num_nextn_predict_layers": 0}))
    for model in (str(tmp_path), "lukealonso/GLM-5-NVFP4"):
        done = run(GLM5, *PRINT, "0.5.9", "--mtp", "--model", model, PYTHON=sys.executable)
        said_once(done, f"--mtp: {model} has no MTP layer", "festr2/GLM-5-NVFP4-MTP")
    said_once(run(QWEN3, *PRINT, "0.5.9", "--mtp"), "this recipe has no --mtp")


def test_attention_paths():
    """Holds that a path without kernels is refused, and that two at once are."""
    said_once(run(GLM5, *PRINT, "0.5.9", "--native-dsa"), "0.5.9 has no indexer kernels for SM120")
    both = run(GLM5, *PRINT, "0.5.23", "--native-dsa", "--dense")
    said_once(both, "--dense and --native-dsa exclude each other")
    done = run(GLM5, *PRINT, "0.5.23", "--native-dsa", "--mtp")
    assert done.returncode == 0 and done.stderr.startswith("note: NVIDIA's GLM-5.2 sample advises")


def test_no_sglang(python):
    """Holds that a Python without SGLang, or none at all, is named."""
    for missing in ("/no/python", shutil.which("false")):
        said_once(run(QWEN3, "--dry-run", PYTHON=missing), f"{missing} has no SGLang", "PYTHON=")


@pytest.mark.parametrize("version", ["0.5.10.post1", "0.5.22", "0.5.23rc1", "0.5.180"])
def test_an_installed_release_without_a_recipe(python, version):
    """Holds that flags are never guessed for a release that nobody checked."""
    said_once(run(QWEN3, "--dry-run", PYTHON=python(version)), f"no recipe for SGLang {version}")


@pytest.mark.parametrize("version", ["0.5.18", "0.5.18.post1", "0.5.18+ours.3"])
def test_a_build_of_a_release(python, version):
    """Holds that a post-release or somebody's own build counts as its release."""
    done = run(QWEN3, "--dry-run", PYTHON=python(version))
    assert (done.returncode, done.stderr) == (0, "")
    assert " -m sglang.launch_server\n" in done.stdout


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_k0_where_oea_cannot_be(python, version):
    """Holds that a requested OEA that is not installed is refused before the load.

    A folder of bytecode is no patch: every SGLang of these tests has one.
    """
    sglang = python(version)
    assert run(QWEN3, "--dry-run", PYTHON=sglang).returncode == 0
    done = run(QWEN3, "--k0", "4", PYTHON=sglang)
    said_once(done, "neither the package sglang-oea nor its patch", f"sglang-{version}.patch")


def test_k0_where_the_plugin_is_kept_out(python):
    """Holds that SGLANG_PLUGINS without oea is told: SGLang would serve stock without a word."""
    sglang = python("0.5.23", oea=True)
    for plugins, status in (("other", 2), ("other, oea", 0)):
        done = run(QWEN3, "--dry-run", "--k0", "4", PYTHON=sglang, SGLANG_PLUGINS=plugins)
        assert done.returncode == status, done.stderr
    done = run(QWEN3, "--dry-run", "--k0", "4", PYTHON=sglang, SGLANG_PLUGINS="other")
    said_once(done, "SGLANG_PLUGINS=other keeps the plugin out")


@pytest.mark.parametrize(
    ("ways", "module"),
    [
        ({"patch": True}, "sglang.launch_server"),
        ({"oea": True}, "sglang_oea.launch_server"),
        ({"oea": True, "patch": True}, "sglang_oea.launch_server"),
    ],
)
def test_ways_into_0_5_9(python, ways, module):
    """Holds that a release without plugins takes OEA from the patch or through our module."""
    done = run(QWEN3, "--dry-run", "--k0", "4", PYTHON=python("0.5.9", **ways))
    assert (done.returncode, done.stderr) == (0, "")
    assert f" -m {module}\n" in done.stdout
