"""One line that says which machine a figure was measured on."""

from __future__ import annotations

import os
import platform


def machine_line() -> str:
    """Return processor, count, load, kernel and Python in one line."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            names = [line.split(":", 1)[1].strip() for line in stream if line.startswith("model name")]
        model = names[0] if names else model
    except OSError:
        model = platform.processor() or model
    load = "/".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"{model}, {os.cpu_count()} CPUs, load {load}, Linux {platform.release()}, Python {platform.python_version()}"
    )
