"""The server's arguments."""

import argparse
from dataclasses import dataclass

from sglang.srt.notes import note


@dataclass
class ServerArgs:
    """What was asked for on the command line."""

    notes: str
    tp_size: int
    dp_size: int
    model_on: str
    exit_status: int


def prepare_server_args(argv):
    """Parse the command line; the launcher's first step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", required=True)
    parser.add_argument("--tp-size", type=int, default=0)
    parser.add_argument("--dp-size", type=int, default=0)
    # which scheduler loads a model; the others take no time
    parser.add_argument("--model-on", default="")
    parser.add_argument("--exit-status", type=int, default=0)
    server_args = ServerArgs(**vars(parser.parse_args(argv)))
    note(server_args.notes, "launcher", argv=argv)
    return server_args
