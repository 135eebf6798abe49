"""The one error of the lab."""


class LabError(Exception):
    """An evaluation that cannot be done as asked: what, where, got, expected, and what helps."""

    def __init__(self, what: str, *, where: object, got: object, expected: str, fix: str):
        lines = {"where": where, "got": got, "expected": expected, "fix": fix}
        told = "".join(f"\n  {name + ':':<10}{said}" for name, said in lines.items())
        super().__init__(f"error: {what}{told}")
