"""Streams of bytes become event blocks, wherever the bytes are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from leadscrew.adapters.models.dialects import sse
from support.dialect_talk import TEXT, cut

LINES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), min_size=1, max_size=20)


@given(
    st.lists(st.tuples(LINES, st.lists(LINES, min_size=1, max_size=3)), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.data(),
)
def test_every_cut_gives_the_same_events(events: list[tuple[str, list[str]]], end: str, data: st.DataObject) -> None:
    lines = []
    for name, datas in events:
        lines += [": a comment", f"event: {name}", *(f"data: {line}" for line in datas), "", ": another", ""]
    chunks = data.draw(cut("".join(line + end for line in lines).encode()))
    blocks = list(sse.split(chunks))
    assert [sse.parse(b) for b in blocks] == [(name, "\n".join(datas)) for name, datas in events]
    assert all(b.endswith(b"\n\n") and b"\r" not in b for b in blocks)


@given(TEXT, TEXT)
def test_what_is_written_is_read(name: str, text: str) -> None:
    (block,) = sse.split([sse.block({"text": text}, "x")])
    assert sse.payload(block) == {"text": text}
    assert sse.parse(block)[0] == "x"


def test_a_last_line_that_was_cut_takes_its_block_along() -> None:
    assert list(sse.split([b'data: 1\n\ndata: {"half": ']))[1:] == []
    assert list(sse.split([b"data: 1\n\nevent: x\ndata: {}{"]))[1:] == []
    assert list(sse.split([b"data: 1\n\ndata: [DONE]\n"]))[1:] == [b"data: [DONE]\n\n"]


def test_a_mark_of_byte_order_and_empty_blocks_are_nothing() -> None:
    assert list(sse.split([b"\xef\xbb", b"\xbfdata: 1\n\n\n\n: ping\n\n"])) == [b"data: 1\n\n"]


async def test_asynchronous_chunks() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"data: 1\n", b"\ndata: ", "\u00e9".encode()[:1], "\u00e9\n".encode()[1:]):
            yield chunk

    assert [block async for block in sse.split(chunks())] == [b"data: 1\n\n", "data: \u00e9\n\n".encode()]


def test_what_is_no_object_has_no_payload() -> None:
    assert sse.payload(b"data: [1]\n\n") is None
    assert sse.payload(b"data: " + b"[" * 100_000 + b"\n\n") is None
