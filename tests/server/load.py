"""What the server tests ask for."""

from typing import Any

from serving import Server

TOP_K = 8
ROWS = 16
TOKENS = 24
# different lengths and topics, so that rows differ from the first step
PROMPTS = [f"{'Once ' * (1 + n % 5)}upon a time number {n * n + 3} met" for n in range(ROWS)]


def generate(server: Server, prompts: list[str] = PROMPTS, **more: Any) -> list[dict]:
    """Greedy answers to all prompts at once."""
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    return server.post("/generate", {"text": prompts, "sampling_params": sampling, **more})


def tokens(answers: list[dict]) -> list[list[int]]:
    """The output ids of each answer."""
    return [answer["output_ids"] for answer in answers]


def counted(server: Server, action: Any) -> tuple[Any, dict[str, int]]:
    """Run an action, and say by how much it raised each counter of `/server_info`."""
    before = server.oea()
    result = action()
    after = server.oea()
    names = ("calls", "rows", "experts_before", "experts_after", "slots_rerouted")
    return result, {name: after[name] - before[name] for name in names}
