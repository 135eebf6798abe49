"""Live k0: what is accepted, by the scheduler's handler and by the HTTP check before it."""

import asyncio
import json
from types import SimpleNamespace

import pytest
import torch

from plugin.routers import ROWS, topk_config
from sglang_oea.core.session import why_no_k0
from sglang_oea.plugin.control import Control, LiveK0Check

NONSENSE = [-1, 1.5, 4.0, True, False, "4", "x", None, [4], {"k0": 4}]


@pytest.mark.parametrize("value", [0, 1, 8, 10**12])
def test_whole_numbers_are_k0s(value):
    """0 is off, and beyond K is stock."""
    assert why_no_k0(value) is None


@pytest.mark.parametrize("value", NONSENSE)
def test_nonsense_is_explained(value):
    """What came and what was expected."""
    assert json.dumps(value) in why_no_k0(value)
    assert "whole number >= 0" in why_no_k0(value)


def handler(host):
    """The handler that the scheduler gets."""
    return Control(host.session).handlers(dict)["oea_k0"]


def test_handler_changes_the_table_in_place(host, reroute_with):
    """A captured graph keeps reading the same memory."""
    rerouter = reroute_with(topk_config("sigmoid"), torch.ones(ROWS, dtype=torch.bool), K0="3")
    where = rerouter.k0_table.data_ptr()
    oea_k0 = handler(host)

    oea_k0.validate("oea_k0", 5)
    assert not oea_k0.apply("oea_k0", 5)

    assert (rerouter.k0_table == 5).all()
    assert rerouter.k0_table.data_ptr() == where
    assert rerouter.report()["k0"] == 5
    # more than an int32 holds is still only "stock"
    oea_k0.apply("oea_k0", 10**12)
    assert (rerouter.k0_table >= 8).all()


@pytest.mark.parametrize("value", NONSENSE)
def test_handler_rejects_nonsense_and_changes_nothing(host, reroute_with, value):
    """The scheduler answers `updated: false`."""
    from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

    rerouter = reroute_with(topk_config("sigmoid"), torch.ones(ROWS, dtype=torch.bool), K0="3")
    with pytest.raises(UpdateRejected, match="whole number"):
        handler(host).validate("oea_k0", value)
    assert (rerouter.k0_table[:, 1:] == 3).all()


def test_handler_rejects_a_server_on_which_oea_does_not_run(host):
    """A strict refusal that was overruled leaves a stock server behind."""
    from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

    with pytest.raises(UpdateRejected, match="not running"):
        handler(host).validate("oea_k0", 4)


def test_internal_state_says_when_oea_does_not_run(host):
    """Nobody should have to guess from an absent field."""
    result = SimpleNamespace(internal_state={})
    Control(host.session).internal_state(lambda: result)
    assert result.internal_state == {"oea": {"enabled": False}}


def ask(body: bytes, path: str = "/set_internal_state", pieces: int = 1) -> tuple[int, bytes]:
    """Send one request through the check to an application that echoes; status and body."""
    size = -(-len(body) // pieces) or 1
    chunks = [body[i : i + size] for i in range(0, len(body), size)] or [b""]
    incoming = [
        {"type": "http.request", "body": chunk, "more_body": chunk is not chunks[-1]}
        for chunk in chunks
    ]
    sent = []

    async def receive():
        return incoming.pop(0)

    async def send(message):
        sent.append(message)

    async def echo(scope, receive, send):
        received, more = b"", True
        while more:
            message = await receive()
            received, more = received + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": received})

    asyncio.run(LiveK0Check(echo)({"type": "http", "path": path}, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("value", NONSENSE)
def test_http_check_answers_400(value):
    """SGLang would turn `true` and `"4"` into numbers before its scheduler sees them."""
    status, body = ask(json.dumps({"server_args": {"oea_k0": value}}).encode())
    assert status == 400
    assert json.dumps(value) in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"server_args": {"oea_k0": 4}}',
        b'{"server_args": {"pp_max_micro_batch_size": true}}',
        b'{"server_args": 3}',
        b"[1, 2]",
        b"not json",
        b"\xff\xfe",
        b"",
    ],
)
def test_http_check_passes_everything_else_on_unchanged(body):
    """Whole or in pieces, byte for byte: what else is wrong is SGLang's to refuse."""
    for pieces in (1, 3):
        assert ask(body, pieces=pieces) == (200, body)


def test_http_check_is_for_one_path():
    """Other routes are not even read."""
    body = b'{"server_args": {"oea_k0": true}}'
    assert ask(body, path="/generate") == (200, body)
