"""The one error of the lab."""

from sglang_oea.core.config import explain


class LabError(Exception):
    """An evaluation that cannot be done as asked: what, where, got, expected, and what helps."""

    def __init__(self, what: str, *, where: object, got: object, expected: str, fix: str):
        told = explain(what, where=where, got=got, expected=expected, fix=fix)
        super().__init__(f"error: {told}")
