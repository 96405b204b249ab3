"""How a session can end: the exit codes and the errors that lead to them."""

from __future__ import annotations

DONE = 0
BAD_TASK = 2
CALLS_USED_UP = 10
TOKENS_USED_UP = 11
SECONDS_USED_UP = 12
WINDOW_TOO_SMALL = 13
ALLOWANCE_USED_UP = 14
STOPPED = 15
MODEL_REFUSED = 20
MODEL_FAILED = 21
MODEL_DECLINED = 22
PROTOCOL_FAILURES = 30

MEANING = {
    DONE: "the model said that it is done",
    BAD_TASK: "the task cannot be used as it is",
    CALLS_USED_UP: "all tool calls are used up",
    TOKENS_USED_UP: "the tokens left do not suffice for another reply",
    SECONDS_USED_UP: "the time is used up",
    WINDOW_TOO_SMALL: "the conversation does not fit into the model's window, however much of it is shortened",
    ALLOWANCE_USED_UP: "the gateway says that the allowance or a cap is used up",
    STOPPED: "the session was told to stop",
    MODEL_REFUSED: "the gateway or provider refused the request",
    MODEL_FAILED: "the model could not be reached or kept failing",
    MODEL_DECLINED: "the model declined to answer",
    PROTOCOL_FAILURES: "too many replies in a row broke the protocol",
}


class End(Exception):
    """The session is over. `code` is the exit code, `detail` says more than its meaning does."""

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(detail or MEANING[code])
        self.code = code
        self.detail = detail
