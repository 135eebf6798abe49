"""A process that has nothing to do with the model, and does not import torch."""

from sglang.srt.notes import note


def run_detokenizer_process(server_args):
    """The detokenizer's process."""
    note(server_args.notes, "detokenizer")
