"""`sglang-oea eval` from the command line to the table, on a tiny checkpoint."""

import json
import subprocess
import sys

import pytest
import tiny_models
from make_demo_model import make_tokenizer

from sglang_oea.cli import main

POLICIES = ["oea:k0=1", "pruned:k0=1", "sere:top=1,rho=0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint with its tokenizer, a text, and another one to calibrate on."""
    folder = tmp_path_factory.mktemp("eval")
    tokenizer = make_tokenizer()
    tiny_models.build("glm4_moe", vocab_size=len(tokenizer)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    text = " ".join(f"{i} times {i} is {i * i}." for i in range(60))
    (folder / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
    (folder / "calibration.txt").write_text(text[::-1])
    return folder


@pytest.fixture
def evaluate(folder, capsys):
    """Run it; returns the status, standard output and standard error."""

    def run(*arguments, model="model", text="text.jsonl"):
        sizes = ["--length=16", "--sequences=8"]
        named = [f"--model={folder / model}", f"--text={folder / text}"]
        # argparse reads --batch 4 8 up to the next option
        status = main(["eval", "--device=cpu", *map(str, arguments), *named, *sizes])
        return status, *capsys.readouterr()

    return run


def test_table_and_plots(evaluate, folder, tmp_path):
    """Holds the whole way: policies at two batch sizes, a table, a picture each."""
    given = ["--policy", *POLICIES, "--batch", 4, 8, "--plot", tmp_path]
    status, out, err = evaluate(*given, "--calibration", folder / "calibration.txt")
    assert status == 0
    title, header, *lines = out.splitlines()
    assert title == "model on text.jsonl: 8 sequences of 16 tokens, float32; difference to stock"
    assert header.split()[:4] == ["policy", "B", "parameters", "T"]
    names = ["stock", "oea", "pruned", "sere"]
    assert [line.split()[:2] for line in lines] == [[n, b] for b in "48" for n in names]
    assert {file.name for file in tmp_path.iterdir()} == {"pareto-B4.png", "pareto-B8.png"}
    assert "B=8 oea:k0=1: measured" in err


def test_same_seed_same_numbers(evaluate):
    """Holds that two runs print the same table, and another seed another one."""
    outputs = [evaluate("--policy", "oea:k0=1", "--batch", 4, "--seed", s)[1] for s in (0, 0, 1)]
    assert outputs[0] == outputs[1] != outputs[2]


def test_default_policies(evaluate, folder):
    """Holds that without --policy all families are there, those that need a second text with it."""
    _, out, _ = evaluate("--batch", 8)
    families = {line.split()[0] for line in out.splitlines()[2:]}
    assert families == {"stock", "pruned", "oea", "paper", "lynx", "xshare"}
    _, out, _ = evaluate("--batch", 8, "--calibration", folder / "calibration.txt")
    assert {line.split()[0] for line in out.splitlines()[2:]} == families | {"sere"}


def test_resumes(evaluate, tmp_path):
    """Holds that finished rows are neither measured again nor written again."""
    path = tmp_path / "r.jsonl"
    given = ["--out", path, "--batch", 4]
    _, first, _ = evaluate(*given, "--policy", "oea:k0=1")
    before = path.read_text()
    assert len(before.splitlines()) == 2

    _, again, err = evaluate(*given, "--policy", "oea:k0=1")
    assert again == first and path.read_text() == before
    assert "measured" not in err and err.count("finished before") == 2

    # stock's hidden states are needed again, its row is not
    _, more, err = evaluate(*given, "--policy", "oea:k0=1", "pruned:k0=1")
    assert path.read_text().startswith(before) and len(path.read_text().splitlines()) == 3
    assert "oea:k0=1: finished before" in err and "pruned:k0=1: measured" in err

    _, fresh, _ = evaluate("--batch", 4, "--policy", "oea:k0=1", "pruned:k0=1")
    assert fresh == more


def test_corrupt_results(evaluate, tmp_path):
    """Holds that a broken line ends the run before it measures, and costs no finished row."""
    path = tmp_path / "r.jsonl"
    evaluate("--out", path, "--batch", 4, "--policy", "oea:k0=1")
    torn = path.read_text()[:-20]
    path.write_text(torn)
    status, out, err = evaluate("--out", path, "--batch", 4, "--policy", "oea:k0=1")
    assert (status, out) == (2, "") and f"{path}, line 2" in err
    assert path.read_text() == torn


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "oae"], "unknown policy"),
        (["--policy", "oea:k0=0"], "k0: expected at least 1, got 0"),
        (["--policy", "paper:k0=9"], "k0: expected 1 to kmax=3, got 9"),
        (["--policy", "sere:top=1,rho=0"], "add --calibration FILE"),
        (["--batch", 3], "--sequences 6, or another --batch"),
        (["--batch", 16], "--sequences 16, or another --batch"),
        (["--calibration", "none.txt"], "the text cannot be read"),
        (["--device", "abacus"], "the device cannot be used"),
        (["--dtype", "float64"], "invalid choice: 'float64'"),
        (["--batch", 0], "expected a whole number from 1 on, got 0"),
    ],
)
def test_bad_options(evaluate, capsys, arguments, said):
    """Holds that bad input is one message and exit 2, before anything is measured."""
    try:
        status, out, err = evaluate("--batch", 4, *arguments)
    except SystemExit as refused:
        status, (out, err) = refused.code, capsys.readouterr()
    assert (status, out) == (2, "")
    assert said in err and "measured" not in err and "Traceback" not in err


def test_bad_model_and_text(evaluate, folder, tmp_path):
    """Holds that what is not there, not a checkpoint, or too short is refused by name."""
    assert "no config.json there" in evaluate("--batch", 4, model="none")[2]
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken" / "config.json").write_text('{"model_type": "unheard-of"}')
    status, _, err = evaluate("--batch", 4, model="broken")
    assert status == 2 and "the model cannot be loaded" in err and "unheard-of" in err
    (folder / "short.txt").write_text("too short")
    status, _, err = evaluate("--batch", 4, text="short.txt")
    assert status == 2 and "0 sequences of 16 tokens" in err


def test_without_transformers(evaluate, monkeypatch):
    """Holds that a missing transformers is said with the command that brings it."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, _, err = evaluate("--batch", 4)
    assert status == 2 and "transformers is missing" in err and "pip install" in err


def test_help_imports_nothing_heavy():
    """Holds that the options can be read without torch, transformers and sglang."""
    code = (
        "import sys\nfrom sglang_oea.cli import main\n"
        "try:\n    main(['eval', '--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(', '.join({'torch', 'transformers', 'sglang'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for option in ("--model", "--text", "--batch", "--policy", "--calibration", "--out", "--plot"):
        assert option in done.stdout
