"""The outside view: `/server_info` proves that OEA runs, `/set_internal_state` changes k0 live.

The scheduler asks the session between two forwards, on all ranks at the same step. A live k0 is
checked twice: as raw JSON where the request arrives, and as the value that the scheduler gets.
"""

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from sglang_oea.core.session import Session, why_no_k0

logger = logging.getLogger("sglang_oea")
LIVE_KEY = "oea_k0"


class Control:
    """Hooks of the scheduler, which every rank of a server runs at the same step."""

    def __init__(self, session: Session):
        self.session = session

    def internal_state(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """AROUND `Scheduler.get_internal_state`: add the `oea` field."""
        result = original(*args, **kwargs)
        result.internal_state["oea"] = self.session.report()
        return result

    def handlers(self, original: Callable, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """AROUND `_update_handlers`: add the one for `oea_k0`."""
        from sglang.srt.managers.scheduler_components import internal_state

        def validate(key: str, value: Any) -> None:
            problem = self.session.why_bad_k0(value)
            if problem is not None:
                raise internal_state.UpdateRejected(f"Updating {key} is rejected: {problem}")

        def apply(key: str, value: int) -> None:
            self.session.set_k0(value)

        handler = internal_state._UpdateHandler(validate, apply)
        return {**original(*args, **kwargs), LIVE_KEY: handler}


def watch_requests(original: Callable, *args: Any, **kwargs: Any) -> None:
    """AROUND `TokenizerManager.__init__`: check a live k0 before SGLang turns `true` into 1."""
    original(*args, **kwargs)
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
        return why_no_k0(json.loads(body)["server_args"][LIVE_KEY])
    except (ValueError, KeyError, TypeError):
        return None
