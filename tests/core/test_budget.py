"""Spend is exact, unknown money stays unknown, and no scope is ever overdrawn by a reservation."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from leadscrew.core.budget import Account, Caps, Spend

COUNT = st.integers(0, 2**70)
SPENDS = st.builds(Spend, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, st.none() | COUNT)


@given(SPENDS, SPENDS, SPENDS)
def test_spend_adds_exactly_in_any_order(a: Spend, b: Spend, c: Spend) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + Spend() == a
    for f in fields(Spend):
        parts = [getattr(s, f.name) for s in (a, b, c)]
        assert getattr(a + b + c, f.name) == (None if None in parts else sum(parts))


@given(SPENDS)
def test_spend_survives_json(spend: Spend) -> None:
    assert Spend.from_json(spend.to_json()) == spend


def test_unknown_money_is_null_and_never_nothing() -> None:
    assert Spend(micro_usd=None).to_json() == {"micro_usd": None}
    assert (Spend(micro_usd=None) + Spend(micro_usd=5)).micro_usd is None
    assert Spend().to_json() == {}


class Reservations(RuleBasedStateMachine):
    """Scopes nest; reservations and settlements come in any order; no cap is ever exceeded."""

    scopes = Bundle("scopes")
    held: Bundle[tuple[Account, dict[str, int]]] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Account] = []
        self.open: list[tuple[Account, dict[str, int]]] = []

    caps = st.builds(
        Caps,
        trials=st.none() | st.integers(0, 12),
        calls=st.none() | st.integers(0, 12),
        tokens=st.none() | st.integers(0, 60),
        usd=st.none() | st.integers(0, 40).map(lambda n: n / 1_000_000),
    )

    @initialize(target=scopes, caps=caps)
    def run(self, caps: Caps) -> Account:
        self.all.append(Account(caps))
        return self.all[0]

    @rule(target=scopes, parent=scopes, caps=caps)
    def nest(self, parent: Account, caps: Caps) -> Account:
        self.all.append(Account(caps, parent))
        return self.all[-1]

    @rule(
        scope=scopes,
        trials=st.integers(0, 4),
        calls=st.integers(0, 3),
        tokens=st.integers(0, 20),
        usd=st.integers(0, 9),
    )
    def reserve(self, scope: Account, trials: int, calls: int, tokens: int, usd: int) -> None:
        before = [(a.held, a.spent) for a in self.all]
        want = {"trials": trials, "calls": calls, "tokens": tokens, "micro_usd": usd}
        if scope.reserve(**want) is None:
            self.open.append((scope, want))
        else:
            assert [(a.held, a.spent) for a in self.all] == before, "a refused reservation must take nothing"

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        if not self.open:
            return
        scope, held = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        used = {name: data.draw(st.integers(0, amount), label=name) for name, amount in held.items()}
        actual = Spend(
            trials=used["trials"], calls=used["calls"], tokens_in=used["tokens"], micro_usd=used["micro_usd"]
        )
        scope.settle(actual, **held)

    @invariant()
    def no_cap_is_exceeded(self) -> None:
        for account in self.all:
            used, caps = account.spent + account.held, account.caps
            assert caps.trials is None or used.trials <= caps.trials
            assert caps.calls is None or used.calls <= caps.calls
            assert caps.tokens is None or used.tokens_in + used.tokens_out <= caps.tokens
            assert used.micro_usd is not None
            assert caps.usd is None or used.micro_usd <= round(caps.usd * 1_000_000)

    @invariant()
    def what_is_held_is_what_was_not_settled(self) -> None:
        for account in self.all:
            mine = [held for scope, held in self.open if account in scope._chain()]
            assert account.held.trials == sum(h["trials"] for h in mine)
            assert account.held.tokens_out == sum(h["tokens"] for h in mine)
            assert account.held.calls == sum(h["calls"] for h in mine)


TestReservations = Reservations.TestCase


def test_the_tightest_scope_refuses_by_name() -> None:
    run = Account(Caps(trials=10, tokens=100))
    role = Account(Caps(calls=2), run)
    plan = Account(Caps(trials=3), role)
    assert plan.reserve(trials=4) == "trials"
    assert plan.reserve(calls=3) == "calls"
    assert plan.reserve(calls=1, tokens=101) == "tokens"
    assert plan.reserve(trials=3, calls=2, tokens=100) is None
    assert run.reserve(tokens=1) == "tokens"
    plan.settle(Spend(trials=3, calls=2, tokens_in=10, tokens_out=20), trials=3, calls=2, tokens=100)
    assert run.spent == role.spent == plan.spent == Spend(trials=3, calls=2, tokens_in=10, tokens_out=20)
    assert run.reserve(tokens=70) is None
    assert run.reserve(tokens=1) == "tokens"


def test_a_money_cap_refuses_calls_once_the_price_is_unknown() -> None:
    run = Account(Caps(usd=1.0))
    assert run.reserve(calls=1, micro_usd=1_000_000) is None
    run.settle(Spend(calls=1, micro_usd=None), calls=1, micro_usd=1_000_000)
    assert run.reserve(calls=1) == "usd"
    assert run.reserve(trials=1) is None
