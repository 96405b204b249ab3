"""What people and other programs tell a run: notes, stops, submissions, approvals, rejections."""

from __future__ import annotations

from leadscrew.engine.bench import Submissions
from leadscrew.ports import Message, Store


class Inbox:
    """Reads messages and keeps what they mean for the loop. A submission is marked as taken only when it was used."""

    def __init__(self, store: Store, submissions: Submissions) -> None:
        self.notes: list[str] = []
        self.stop_reason: str | None = None
        self._store, self._submissions = store, submissions
        self._seen: set[str] = set()

    def poll(self) -> list[str]:
        """Take in new messages; return new notes. What was written is durable at the next commit."""
        notes: list[str] = []
        for message in self._store.inbox():
            if message.id in self._seen:
                continue
            self._seen.add(message.id)
            if message.kind in ("submit", "approve"):
                self._submissions.put(message)
                continue
            self._act(message, notes)
            self._store.taken(message)
        self.notes.extend(notes)
        return notes

    def _act(self, message: Message, notes: list[str]) -> None:
        text = str(message.data.get("text", ""))
        if message.kind == "note":
            self._store.add_event("note", {"text": text})
            notes.append(text)
        elif message.kind == "stop":
            self.stop_reason = text or "asked to stop"
        elif message.kind == "reject":
            self._store.add_event("reject", {"candidate": str(message.data.get("candidate", "")), "text": text})
        else:
            self._store.add_event("unknown_message", {"kind": message.kind})
