"""The demo model's training, on a model of some thousand weights and a text of a few words."""

import json
import random

import pytest
import torch
from demo_model import architecture, experts, export, html_prose, measure, muon, texts, training
from train_demo_model import main, parse, train
from transformers import Glm4MoeConfig

TEXT = "the server reads a file and returns an error when no table of that name was found"
WORDS = TEXT.split()
SIZE = {"hidden_size": 32, "moe_intermediate_size": 8, "num_hidden_layers": 2, "head_dim": 8}
ROUTING = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}


def tiny(vocabulary: int = 320) -> Glm4MoeConfig:
    """A model that takes a step in a few milliseconds."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}
    tokens = {"vocab_size": vocabulary, "pad_token_id": 1, "eos_token_id": 0}
    return Glm4MoeConfig(**SIZE, **ROUTING, **heads, **tokens, first_k_dense_replace=1)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with texts, for steps of 8 windows of 8 tokens, then 4 of 16."""
    monkeypatch.setattr(training, "TOKENS", 64)
    monkeypatch.setattr(training, "SHORT", 8)
    monkeypatch.setattr(training, "LENGTH", 16)
    rng = random.Random(0)
    rows = [{"name": str(i), "text": " ".join(rng.choices(WORDS, k=60))} for i in range(40)]
    folder = tmp_path / "texts"
    folder.mkdir()
    texts.write_jsonl(folder / "train.jsonl", rows[20:])
    texts.write_jsonl(folder / "held_out.jsonl", rows[:20])
    tokenizer = texts.train_tokenizer((row["text"] for row in rows[20:]), 320)
    tokenizer.save_pretrained(folder / "tokenizer")
    return tmp_path


def run(work, steps: int, *more: str) -> bool:
    """Train the tiny model in a folder, as far as the options say."""
    arguments = [f"--work={work}", f"--steps={steps}", f"--out={work / 'model'}", *more]
    return train(parse(arguments), tiny())


def weights(work) -> dict[str, torch.Tensor]:
    """What a run has saved."""
    return torch.load(work / "run" / "state.pt", weights_only=True)["model"]


def test_resumed_equals_uninterrupted(work, capsys):
    """Holds that a run stopped after every step makes the weights of one that was not.

    The order of the text, the optimisers and the bias all have to go on where they were; and a run
    that had not logged yet must go on too.
    """
    assert run(work, 4)
    whole = weights(work)
    (work / "run").rename(work / "uninterrupted")
    stops = 0
    while not run(work, 4, "--minutes=0"):
        stops += 1
    assert stops == 3
    for name, weight in weights(work).items():
        assert torch.equal(weight, whole[name]), name
    (row,) = texts.read_jsonl(work / "run" / "log.jsonl")
    assert row["step"] == 4 and 0 < row["held_out"] < 7


def test_another_seed_is_another_model(work, capsys):
    """Holds that the seed decides, and that a state of another seed is refused, not taken over."""
    assert run(work, 1)
    first = weights(work)["lm_head.weight"]
    with pytest.raises(ValueError, match="with seed 0; got --steps 1 --seed 1"):
        run(work, 1, "--seed=1")
    assert torch.equal(weights(work)["lm_head.weight"], first)
    (work / "run").rename(work / "first")
    assert run(work, 1, "--seed=1")
    assert not torch.equal(weights(work)["lm_head.weight"], first)


def test_steps_change_only_before_the_fall(work, capsys):
    """Holds that a run can be shortened while the learning rate is flat, and no later.

    A model that began to fall for one end and then fell for another is made by no command.
    """
    model = architecture.make_model(tiny(), seed=0)
    path = work / "state.pt"
    before = training.Training(model, seed=0, steps=100)
    # the last step that was taken is number 70, the first that falls number 71
    before.step = 71
    before.save(path)
    after = training.Training(model, seed=0, steps=200)
    after.load(path)
    assert after.step == 71
    with pytest.raises(ValueError, match="is at step 71 of 100"):
        training.Training(model, seed=0, steps=99).load(path)


def test_schedule():
    """Holds that the rate rises, stays, and falls to nothing over the last part."""
    rates = [training.schedule(step, 1000) for step in range(1000)]
    assert rates[0] == 0.01 and rates[99] == 1 and rates[700] == 1
    assert rates[850] == pytest.approx(0.5) and rates[999] == pytest.approx(1 / 300)


def test_an_epoch_sees_each_window_once():
    """Holds that no text is trained on twice before all of it was trained on once."""
    stream = torch.arange(100)
    seen = [training.batch(stream, step, 0, rows=2, length=10) for step in range(4)]
    starts = torch.cat(seen)[:, 0].sort().values
    assert (starts.diff() == 10).all() and len(starts) == 8
    assert not torch.equal(training.batch(stream, 4, 0, 2, 10), seen[0])
    with pytest.raises(ValueError, match="a step needs 21 x 10 tokens of text; got 100"):
        training.batch(stream, 0, 0, rows=20, length=10)


def test_balance():
    """Holds that the bias moves each expert towards its own share, whatever the batch size."""
    gate = architecture.gates(architecture.make_model(tiny(), seed=0))[0]
    share = torch.tensor([0.1, 0.5, 0.6, 0.8, 1, 1, 1, 3])
    training.balance(gate, torch.tensor([2, 5, 5, 8, 12, 10, 8, 30]), share, rate=0.5)
    assert gate.e_score_correction_bias.tolist() == [-0.5, 0, 0.5, 0, -0.5, 0, 0.5, 0]


def test_shares():
    """Holds that shares add up, that the layers' favourites differ, and that T can be as wanted."""
    first, second = training.shares(64, 0), training.shares(64, 1)
    assert first.mean() == pytest.approx(1) and first.max() / first.min() == pytest.approx(32)
    assert not torch.equal(first, second) and torch.equal(first.sort()[0], second.sort()[0])
    # rows that draw independently, each expert with its share's probability
    expected = (1 - (1 - first * 8 / 64) ** 16).sum() / measure.uniform(64, 8, 16)
    assert expected == pytest.approx(0.77, abs=0.01)


def test_windows_grow_when_the_rate_falls():
    """Holds that a step has the same number of tokens before and after."""
    run = training.Training(architecture.make_model(tiny(), seed=0), seed=0, steps=10)
    stream = torch.arange(20000)
    sizes = []
    for run.step in (0, 7, 8):
        sizes.append(tuple(run.windows(stream).shape))
    assert sizes == [(16, 257), (16, 257), (8, 513)]


def test_experts_equal_those_of_transformers():
    """Holds that the quick experts compute what the plain ones do, gradients included."""
    results = []
    for name in (experts.NAME, "eager"):
        model = architecture.make_model(tiny(), seed=0)
        model.set_experts_implementation(name)
        ids = torch.arange(64).view(2, 32)
        logits = model(input_ids=ids).logits
        logits.square().mean().backward()
        results.append([logits.detach(), *(p.grad for p in model.parameters())])
    for quick, plain in zip(*results, strict=True):
        torch.testing.assert_close(quick, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8, 20), (3, 20, 8), (8, 8)])
def test_muon_updates_are_orthogonal(shape):
    """Holds that each matrix of a stack is orthogonalised by itself, whichever way it lies."""
    scale = torch.tensor([1e-3, 1.0, 1e3]).view(3, 1, 1) if len(shape) == 3 else 1.0
    update = muon.orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale)
    singular = torch.linalg.svdvals(update.float())
    assert update.shape == shape and (singular > 0.4).all() and (singular < 1.3).all()


def test_prose():
    """Holds what is kept of a page: headings with text, sentences, plain characters."""
    html = """<html><head><title>x</title></head><body><nav><p>A way to go to all pages.</p></nav>
    <h1>3.1. Reading<a href="#">&para;</a></h1><p>The <code>read()</code> call &mdash; it blocks
    &mdash; returns &ldquo;bytes&rdquo; of a file.<pre>x = read(7) is a call of the function.</pre>
    <table><tr><td>A cell of a table has a sentence.</td></tr></table>
    <h2>Empty</h2><h2>Next</h2>
    <ul><li>See also the page on writing to files.</li><li>Files</li></ul>
    <p>f(x) = {1: 2, 3: 4, 5: 6} [7] = 8 + 9 * 10.</p></body>"""
    assert list(html_prose.prose(html)) == [
        "Reading",
        'The read() call - it blocks - returns "bytes" of a file.',
        "Next",
        "See also the page on writing to files.",
    ]


def test_documents_are_held_out_whole():
    """Holds that no paragraph is in two documents, and that the split needs names alone."""
    shared = "<p>This paragraph stands in every document of the package.</p>"
    pages = [
        (f"{i}.html", shared + f"<p>{f'Document {WORDS[i % 15]} has its own words. ' * 30}</p>")
        for i in range(30)
    ]
    documents = texts.clean(reversed(pages))
    blocks = [block for row in documents for block in row["text"].split("\n\n")]
    assert len(blocks) == len(set(blocks)) == 16 and len(documents) == 15
    names = [str(i) for i in range(3200)]
    held_out = [name for name in names if texts.is_held_out(name)]
    assert 60 < len(held_out) < 140
    assert held_out == [name for name in reversed(names) if texts.is_held_out(name)][::-1]


def test_sequences_of_a_batch_are_of_different_documents(work):
    """Holds that a batch is as mixed as many users are, and that incomplete pieces are left out."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(work / "texts" / "tokenizer")
    rows = [{"text": " the" * 5 + " file" * 5 + " no"}, {"text": " table" * 5}, {"text": " a"}]
    found = measure.sequences(rows, tokenizer, 5)
    said = [tokenizer.decode(piece) for piece in found]
    assert said == [" the" * 5, " table" * 5, " file" * 5]


def test_union():
    """Holds T by hand: one layer, two rows that decode two steps."""
    chosen = torch.tensor([[[[0, 1], [4, 5]], [[1, 2], [5, 4]]]])
    assert measure.union(chosen, 8).tolist() == [[3, 2]]
    assert measure.uniform(64, 8, 16) == pytest.approx(56.44, abs=0.01)


def test_fitting():
    """Holds that whole documents are shipped, no more than there is room for, of all packages."""
    rows = [{"name": f"p{i // 50}/{i}", "text": "a" * 50} for i in range(100)]
    shipped = list(export.fitting(rows, 1000))
    assert len(shipped) == 1000 // (len(json.dumps(rows[50])) + 1)
    assert {row["name"][:2] for row in shipped} == {"p0", "p1"}
    assert list(export.fitting(reversed(rows), 1000)) == shipped
    large = {"name": "large", "text": "a" * 1001}
    assert list(export.fitting([large, rows[0]], 1000)) == [rows[0]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected --work, --steps and --out, or --measure"),
        (["--work=w", "--steps=0", "--out=o"], "expected a whole number from 1 on, got 0"),
        (["--measure=nowhere"], "nowhere has no held_out.jsonl"),
    ],
)
def test_bad_options(arguments, said, capsys):
    """Holds that a bad option is said at once, exit 2, before anything is fetched or made."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2 and said in capsys.readouterr().err


def test_no_archive(tmp_path, monkeypatch, capsys):
    """Holds that a machine without its archive is told what failed and what helps."""
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho E: no route to the archive >&2\nexit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert main([f"--work={tmp_path / 'w'}", "--steps=1", f"--out={tmp_path / 'o'}"]) == 2
    said = capsys.readouterr().err
    assert "apt-get download apache2-doc failed: E: no route to the archive" in said
    assert "Fix: run apt-get update" in said
