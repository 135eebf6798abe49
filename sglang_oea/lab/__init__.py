"""What OEA costs in quality: routing policies compared offline, on a checkpoint and a text at hand.

    texts.py        a text or JSONL file -> sequences of tokens
    model.py        a checkpoint of transformers, its head, and its MoE layers with proven scoring
    layers.py       finds the MoE layers
    seam.py         the one place where a layer's selection is seen and replaced
    scoring.py      how a router scores, found by recomputing what it chose
    policies/       one policy a file: who decides which experts a batch activates
    similarity.py   how alike experts are, for the policy that asks
    evaluate.py     a policy on B sequences that decode in step: cross-entropy, T, distance to stock
    bench.py        one model and one text: what is not measured yet is measured
    results.py      finished measurements as JSON lines, and what they were measured on
    statistics.py   bootstrap intervals
    report.py       the table
    plot.py         cross-entropy over T, one picture a batch size
    run.py          what `sglang-oea eval` does, step by step
    commands.py     its options
    trace.py        what a server recorded, and replay.py: does routing it again give the same?

Knows no server: imports `core`, torch, transformers and matplotlib, each when it is needed.
"""
