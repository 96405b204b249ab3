"""The part of the Store port's conformance suite that is about model calls and spend; `StoreSuite` contains it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from leadscrew.core.budget import Spend
from leadscrew.core.call import Call, CallReply
from leadscrew.errors import RefusedError, UsageError
from leadscrew.ports import Store
from leadscrew.testing.samples import sample_call, sample_reply, sample_trial, write_run

ODD = "a\ud800b\0c\x85\u2028" + "\u00e9" * 3000
"""A text with a lone surrogate, a NUL and great length: programs and models print anything."""


class CallSuite(ABC):
    """What every store must do with model calls. A subclass implements `create` and `open`."""

    @abstractmethod
    def create(self, folder: Path) -> Store:
        """Begin a run with seed 7, the configuration `{"method": "suite"}` and `RECORD_KINDS`, open for writing."""

    @abstractmethod
    def open(self, folder: Path, readonly: bool = False) -> Store:
        """Open a run that `create` began."""

    # -- calls ---------------------------------------------------------------------------------

    def test_calls_come_back_as_they_were_recorded(self, tmp_path: Path) -> None:
        """Every field of call and reply survives, odd texts and unknown prices included, in the order of the calls."""
        store = self.create(tmp_path)
        learn = f"learn:{'a' * 64}"
        calls = [
            sample_call(1),
            Call("meta", -1, "", "plan:3:modify", "0" * 64, 7, "local/m"),
            replace(sample_call(2), body={"text": ODD, "x": [1, None, 0.5]}, instance=ODD, candidate=ODD, scope=learn),
            replace(sample_call(1, occurrence=1), bound_micro_usd=None),
        ]
        replies = [
            sample_reply(ODD),
            CallReply("failed", message=ODD, attempts=3, uncertain=2, usage="missing", spend=Spend(calls=1)),
            CallReply("refused", "upstream", spend=Spend(1, 2, 3, 4, 5, 6, None), usage="implausible"),
        ]
        numbers = [store.add_call(call) for call in calls]
        # Replies come in any order.
        for place in (2, 0, 1):
            store.add_reply(numbers[place], replies[place])
        store.commit()
        wanted = list(zip(numbers, calls, [*replies, None], strict=True))
        assert list(store.calls()) == wanted
        store.close()
        reader = self.open(tmp_path, readonly=True)
        assert list(reader.calls()) == wanted
        assert list(reader.calls(calls[0].scope)) == [wanted[0], wanted[3]]
        assert list(reader.calls(learn)) == [wanted[2]]
        assert list(reader.calls("plan:4:modify")) == []
        assert reader.verify() > 7
        reader.close()

    def test_a_reply_is_found_by_scope_request_and_occurrence(self, tmp_path: Path) -> None:
        """The n-th equal call of a scope has its own reply; another scope, request or occurrence has none."""
        store = self.create(tmp_path)
        for occurrence in (0, 1):
            number = store.add_call(sample_call(1, occurrence=occurrence))
            store.add_reply(number, sample_reply(f"answer {occurrence}"))
        store.commit()
        call = sample_call(1)
        for occurrence in (0, 1):
            assert store.find_reply(call.scope, call.request, occurrence) == sample_reply(f"answer {occurrence}")
        assert store.find_reply(call.scope, call.request, 2) is None
        assert store.find_reply(call.scope, "f" * 64, 0) is None
        assert store.find_reply("f" * 64, call.request, 0) is None
        store.close()

    def test_only_ok_replies_are_found_and_the_first_call_wins(self, tmp_path: Path) -> None:
        """A call that failed, was refused or never got a reply is no answer to anybody; an answer is never replaced."""
        store = self.create(tmp_path)
        call = sample_call(1)
        store.add_call(call)
        for status in ("failed", "refused"):
            store.add_reply(store.add_call(call), replace(sample_reply(), status=status))
        assert store.find_reply(call.scope, call.request, 0) is None
        assert store.find_shared(call.share, call.request, 0) is None
        for text in ("first", "second"):
            store.add_reply(store.add_call(call), sample_reply(text))
            assert store.find_reply(call.scope, call.request, 0) == sample_reply("first")
            assert store.find_shared(call.share, call.request, 0) == sample_reply("first")
        store.commit()
        store.close()

    def test_equal_calls_with_the_same_share_have_one_reply_in_common(self, tmp_path: Path) -> None:
        """Another program's equal call finds the reply by `share`; an empty share shares nothing."""
        store = self.create(tmp_path)
        alone = replace(sample_call(2), share="")
        store.add_reply(store.add_call(sample_call(1)), sample_reply())
        store.add_reply(store.add_call(alone), sample_reply())
        store.commit()
        other = replace(sample_call(1), scope="b" * 64, candidate="5.0")
        assert store.find_reply(other.scope, other.request, 0) is None
        assert store.find_shared(other.share, other.request, 0) == sample_reply()
        assert store.find_shared(other.share, other.request, 1) is None
        assert store.find_shared("c" * 64, other.request, 0) is None
        assert store.find_shared("", alone.request, 0) is None
        store.close()

    def test_a_call_gets_one_reply(self, tmp_path: Path) -> None:
        """A second reply, and one to a call that is not stored, are refused."""
        store = self.create(tmp_path)
        number = store.add_call(sample_call(1))
        store.add_reply(number, sample_reply())
        for wrong in (number, number + 1):
            with raises(ValueError):
                store.add_reply(wrong, sample_reply("another"))
        with raises(UsageError):
            store.add_call(replace(sample_call(2), body={"path": Path("x")}))
        store.commit()
        assert [(n, reply) for n, _, reply in store.calls()] == [(number, sample_reply())]
        store.verify()
        store.close()

    def test_a_process_that_dies_between_call_and_reply_leaves_the_call(self, tmp_path: Path) -> None:
        """The committed call is there without a reply and counts as its whole bound; asking again is a new call."""
        store = self.create(tmp_path)
        first = store.add_call(sample_call(1))
        store.commit()
        store.add_reply(first, sample_reply("lost"))
        store.close()
        store = self.open(tmp_path)
        assert list(store.calls()) == [(first, sample_call(1), None)]
        assert store.spend() == Spend(calls=1, tokens_out=100, micro_usd=50)
        again = store.add_call(sample_call(1))
        store.add_reply(again, sample_reply())
        store.commit()
        assert store.find_reply(sample_call(1).scope, sample_call(1).request, 0) == sample_reply()
        assert store.spend() == Spend(calls=2, tokens_in=12, tokens_out=101, micro_usd=57)
        assert [reply for _, _, reply in store.calls()] == [None, sample_reply()]
        store.close()

    def test_readers_find_committed_replies_only(self, tmp_path: Path) -> None:
        """What is not durable is not there for others: neither call nor reply nor spend."""
        store = self.create(tmp_path)
        call = sample_call(1)
        store.commit()
        reader = self.open(tmp_path, readonly=True)
        number = store.add_call(call)
        assert (list(reader.calls()), reader.spend()) == ([], Spend())
        store.commit()
        assert list(reader.calls()) == [(number, call, None)]
        store.add_reply(number, sample_reply())
        assert reader.find_reply(call.scope, call.request, 0) is None
        assert reader.find_shared(call.share, call.request, 0) is None
        store.commit()
        assert reader.find_reply(call.scope, call.request, 0) == sample_reply()
        assert reader.find_shared(call.share, call.request, 0) == sample_reply()
        assert reader.spend() == store.spend() == sample_reply().spend
        for write in (lambda: reader.add_call(call), lambda: reader.add_reply(number, sample_reply())):
            with raises(RefusedError):
                write()
        reader.close()
        store.close()

    def test_calls_change_the_chain_and_not_the_archive_digest(self, tmp_path: Path) -> None:
        """How a result was come by is in the chain; what was found is in the digest."""
        store = self.create(tmp_path)
        write_run(store, plans=2)
        store.commit()
        head, digest, links = store.chain_head(), store.archive_digest(), store.verify()
        store.add_reply(store.add_call(sample_call(1)), sample_reply())
        store.commit()
        assert store.archive_digest() == digest
        assert store.chain_head() != head
        assert store.verify() > links + 1
        store.close()

    # -- spend ---------------------------------------------------------------------------------

    def test_spend_is_time_of_trials_and_price_of_calls(self, tmp_path: Path) -> None:
        """What a trial says of calls and tokens is what its program used, whoever paid: it is not counted again."""
        store = self.create(tmp_path)
        for number in range(3):
            store.add_trial(replace(sample_trial(number), spend=Spend(1, 10, 20, 2, 30, 40, None)))
        assert store.spend() == Spend(3, 30, 60)
        store.add_reply(store.add_call(sample_call(1)), sample_reply())
        shared = replace(sample_reply(), source="cache", spend=Spend())
        store.add_reply(store.add_call(replace(sample_call(1), scope="b" * 64)), shared)
        store.commit()
        assert store.spend() == Spend(3, 30, 60, 1, 12, 1, 7)
        store.close()
        for readonly in (True, False):
            store = self.open(tmp_path, readonly)
            assert store.spend() == Spend(3, 30, 60, 1, 12, 1, 7)
            store.close()

    def test_spend_of_calls_is_told_by_role_and_plan(self, tmp_path: Path) -> None:
        """The parts sum up to the whole, also the uncertain ones, and every sum equals that of `Call.cost`."""
        store = self.create(tmp_path)
        replies = [
            sample_reply(),
            replace(sample_reply(), attempts=3, uncertain=2),
            None,
            CallReply("failed", attempts=2, uncertain=1, spend=Spend()),
            CallReply("refused", spend=Spend()),
        ]
        sums: dict[tuple[str, int], Spend] = {}
        for number, reply in enumerate(replies * 2):
            call = replace(sample_call(number, plan=number % 3), role="meta" if number > 6 else "solver")
            made = store.add_call(call)
            if reply is not None:
                store.add_reply(made, reply)
            key = (call.role, call.plan)
            sums[key] = sums.get(key, Spend()) + call.cost(reply)
        store.commit()
        assert dict(store.call_spend()) == sums
        assert list(store.call_spend()) == sorted(sums)
        assert store.spend() == sum(sums.values(), Spend())
        assert store.spend() == Spend(calls=6, tokens_in=48, tokens_out=4 + 8 * 100, micro_usd=28 + 8 * 50)
        store.close()
        store = self.open(tmp_path)
        assert dict(store.call_spend()) == sums
        assert store.spend() == sum(sums.values(), Spend())
        store.close()

    def test_unknown_money_stays_unknown(self, tmp_path: Path) -> None:
        """A price that is not known makes the sum unknown, never smaller; a model that costs nothing does not."""
        store = self.create(tmp_path)
        free = replace(sample_call(1), role="solver", bound_micro_usd=0)
        store.add_reply(store.add_call(free), replace(sample_reply(), spend=Spend(calls=1, tokens_in=12, tokens_out=1)))
        store.add_call(free)
        assert store.spend() == Spend(calls=2, tokens_in=12, tokens_out=101, micro_usd=0)
        unpriced = replace(sample_call(2), role="meta", bound_micro_usd=None)
        number = store.add_call(unpriced)
        assert store.spend().micro_usd is None
        store.add_reply(number, replace(sample_reply(), uncertain=1))
        store.commit()
        assert store.spend() == Spend(calls=3, tokens_in=24, tokens_out=202, micro_usd=None)
        assert {role: spend.micro_usd for (role, _), spend in store.call_spend().items()} == {"solver": 0, "meta": None}
        store.close()
        reader = self.open(tmp_path, readonly=True)
        assert reader.spend() == Spend(calls=3, tokens_in=24, tokens_out=202, micro_usd=None)
        reader.close()


@contextmanager
def raises(kind: type[Exception]) -> Iterator[None]:
    """Hold a block against an error that it must raise; the suites are imported without pytest, which is no dependency."""
    said = None
    try:
        yield
    except kind as error:
        said = str(error)
    assert said is not None, f"{kind.__name__} was not raised"
    assert len(said) > 20, f"a {kind.__name__} must say what to do, got {said!r}"
