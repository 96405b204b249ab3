"""A box whose opening is cut off is gone, and whoever opened it is not kept waiting."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from leadscrew.adapters.sandboxes.none import PlainSandbox
from leadscrew.adapters.sandboxes.process import ProcessBox
from leadscrew.core.task import Limits
from leadscrew.ports import BoxSpec


@pytest.mark.parametrize("awaits", range(4))
async def test_an_opening_that_is_cancelled_ends(awaits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    seen = 0
    reached = asyncio.Event()

    def slowed(connect: Any) -> Any:
        async def later(*args: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen > awaits:
                reached.set()
                await asyncio.Event().wait()
            return await connect(*args)

        return later

    monkeypatch.setattr(loop, "connect_read_pipe", slowed(loop.connect_read_pipe))
    monkeypatch.setattr(loop, "connect_write_pipe", slowed(loop.connect_write_pipe))
    boxes: list[ProcessBox] = []
    inner = ProcessBox._watch
    monkeypatch.setattr(ProcessBox, "_watch", lambda box: (boxes.append(box), inner(box))[1])
    sandbox = PlainSandbox()
    opening = asyncio.create_task(sandbox.open(BoxSpec("evaluate", Limits(), argv=("sleep", "300"))))
    if awaits < 3:
        await reached.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    else:
        await (await opening).kill()
    await sandbox.close()
    (box,) = boxes
    with pytest.raises(ProcessLookupError):
        os.kill(box.pid, 0)
