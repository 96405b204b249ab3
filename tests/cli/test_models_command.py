"""`leadscrew models`: what can be asked now and why not the rest, with the roles of a configuration; and fetching."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from leadscrew import models
from leadscrew.adapters.models import fetch as fetching
from leadscrew.cli import main
from leadscrew.config import load_config

Captured = pytest.CaptureFixture[str]

CONFIG = """
[domain]
name = "docstrings"
[models.solver]
model = "mine/small"
input_price = 1.0
output_price = 4.0
[models.proposer]
model = "openai/gpt-of-tomorrow"
[models.judge]
model = "scripted/judge.json"
[providers.mine]
base_url = "http://127.0.0.1:{port}/v1"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "task.toml"
    (tmp_path / "judge.json").write_text('["yes"]')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        path.write_text(CONFIG.replace("{port}", str(free.getsockname()[1])))
    return path


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows by name; a name stands there once."""
    assert len({row["name"] for row in found["models"]}) == len(found["models"])
    return {row["name"]: row for row in found["models"]}


def test_why_a_model_cannot_be_used(config: Path) -> None:
    found = models.listing(load_config(config), environ={"GROQ_API_KEY": "gsk"})
    by_name = rows(found)
    assert by_name["groq/..."]["usable"]
    assert by_name["groq/..."]["why"] == ""
    assert by_name["openai/..."]["why"] == "the environment variable OPENAI_API_KEY is not set"
    assert by_name["openai/gpt-of-tomorrow"]["input_price"] is None
    mine = by_name["mine/small"]
    assert (mine["input_price"], mine["output_price"], mine["usable"]) == (1.0, 4.0, False)
    assert "nothing answers at http://127.0.0.1:" in mine["why"]
    local = by_name["local/smollm2"]
    assert "leadscrew models get smollm2" in local["why"]
    assert not local["usable"]
    assert found["roles"]["solver"] == "mine/small"
    assert set(found["roles"]) == {"solver", "proposer", "judge"}
    assert all(set(row) == set(local) for row in found["models"])


def test_a_server_that_answers_is_usable(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        config.write_text(CONFIG.replace("{port}", str(server.getsockname()[1])))
        assert rows(models.listing(load_config(config), environ={}))["mine/small"]["usable"]


def test_for_people_and_for_programs(config: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["models", str(config)]) == 0
    text = capsys.readouterr().out
    assert "solver: mine/small" in text
    assert "1 USD per million tokens in, 4 out" in text
    assert "openai/gpt-of-tomorrow  no: the environment variable OPENAI_API_KEY is not set; price unknown" in text
    assert main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"models", "roles"}
    assert found["roles"] == {}
    assert set(found["models"][0]) == {"name", "provider", "usable", "why", "input_price", "output_price"}


def test_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'leadscrew[local]'" in rows(models.listing(environ={}))["local/smollm2"]["why"]


def test_fetching_what_is_there_and_what_is_unknown(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    there = dataclasses.replace(fetching.MODELS["smollm2"], sha256=hashlib.sha256(b"weights").hexdigest())
    monkeypatch.setattr(fetching, "MODELS", {"smollm2": there})
    place = fetching.place_of("smollm2", tmp_path / "leadscrew")
    place.parent.mkdir(parents=True)
    place.write_bytes(b"weights")
    assert main(["models", "get", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": "local/smollm2", "file": str(place)}
    assert main(["models", "get", "smollm3"]) == 2
    assert "there is smollm2" in capsys.readouterr().err
    assert main(["models", "task.toml", "smollm2"]) == 2
    assert "leadscrew models get NAME" in capsys.readouterr().err


def test_no_way_to_the_index(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://ann:secret@127.0.0.1:{closed.getsockname()[1]}/simple")
        assert main(["models", "get"]) == 5
    err = capsys.readouterr().err
    assert "could not be fetched from http://127.0.0.1:" in err
    assert "secret" not in err
