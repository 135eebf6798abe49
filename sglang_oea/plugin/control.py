"""The outside view: `/server_info` proves that OEA runs, `/set_internal_state` changes k0 live.

Counters and the k0 table live on the device, so both are touched between two forwards: what is read
is of whole steps, and what is written holds for whole steps, on all ranks the same.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .hooks import Plugin

logger = logging.getLogger("sglang_oea")
LIVE_KEY = "oea_k0"


class Control:
    """Hooks of the scheduler, which every rank of a server runs at the same step."""

    def __init__(self, plugin: "Plugin"):
        self.plugin = plugin

    def internal_state(self, result: Any, *args: Any, **kwargs: Any) -> None:
        """AFTER `Scheduler.get_internal_state`: add the `oea` field."""
        rerouter = self.plugin.rerouter
        if rerouter is None:
            result.internal_state["oea"] = {"enabled": False}
            return
        with self._between_forwards():
            result.internal_state["oea"] = rerouter.report()

    def handlers(self, result: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """AFTER `_update_handlers`: add the one for `oea_k0`."""
        from sglang.srt.managers.scheduler_components import internal_state

        def validate(key: str, value: Any) -> None:
            problem = why_bad_k0(value)
            if problem is None and self.plugin.rerouter is None:
                problem = "OEA is not running on this server"
            if problem is not None:
                raise internal_state.UpdateRejected(f"Updating {key} is rejected: {problem}")

        def apply(key: str, value: int) -> None:
            with self._between_forwards():
                self.plugin.rerouter.set_k0(value)
            logger.info("sglang_oea: k0 is now %d%s", value, "" if value else " (off)")

        result[LIVE_KEY] = internal_state._UpdateHandler(validate, apply)

    @contextlib.contextmanager
    def _between_forwards(self) -> Iterator[None]:
        # with the overlap scheduler forwards run on a stream of their own, else on the current one:
        # ordered after both and before both, this is between two steps either way
        stream = getattr(self.plugin.runner, "forward_stream", None)
        if not isinstance(stream, torch.cuda.Stream):
            yield
            return
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield
        current.wait_stream(stream)


def why_bad_k0(value: Any) -> str | None:
    """Why a live k0 is not one, or None."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return None
    return f"{LIVE_KEY}={json.dumps(value)}; expected a whole number >= 0 (0 is off)"


def watch_requests(result: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER `TokenizerManager.__init__`: check a live k0 before SGLang turns `true` into 1."""
    http_server = sys.modules.get("sglang.srt.entrypoints.http_server")
    if http_server is None:
        return
    if http_server.app.middleware_stack is None:
        http_server.app.add_middleware(LiveK0Check)
    else:
        # one of several tokenizer workers, each an application that has started already
        logger.warning('sglang_oea: a live k0 of true or "1" will be taken for 1')


class LiveK0Check:
    """ASGI middleware: answers 400 to a `/set_internal_state` whose `oea_k0` is no whole number.

    SGLang parses that request leniently (`true` and `"1"` arrive as 1), so only the raw JSON can
    tell.
    """

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        """Pass everything else through untouched."""
        if scope["type"] != "http" or scope["path"] != "/set_internal_state":
            await self.app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        problem = _problem_of(b"".join(message.get("body", b"") for message in messages))
        if problem is None:
            replay = iter(messages)

            async def again() -> dict:
                return next(replay, None) or await receive()

            await self.app(scope, again, send)
            return
        body = json.dumps({"error": {"message": f"sglang_oea: {problem}"}}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _problem_of(body: bytes) -> str | None:
    # what is not JSON of the expected shape is SGLang's to refuse
    try:
        return why_bad_k0(json.loads(body)["server_args"][LIVE_KEY])
    except (ValueError, KeyError, TypeError):
        return None
