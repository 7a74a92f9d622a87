"""Errands at a bank: a tool with state, and a reward from the tool itself.

Each row opens new accounts. The model looks at balances and moves money; at the end the tool's calc_reward
compares the accounts with what the errand should have made of them. Some errands cannot be done without looking at a
balance first.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.core.points import task
from agentrl.tasks.demo.base import Problem, Script, Task, call, say

ACCOUNTS = ("checking", "savings", "rent", "travel", "food", "garden", "gifts", "school")
Balances = dict[str, int]


@dataclass(frozen=True)
class Errand:
    """An order for the accounts `source` and `to`; `number` is the amount, or the balance to leave or to reach."""

    kind: "ErrandKind"
    source: str
    to: str
    number: int


@dataclass(frozen=True)
class ErrandKind:
    """A sort of errand: its wording, the money it moves, and whose balance it asks for."""

    text: str
    action: str
    moved: Callable[[Balances, Errand], int]
    asks_for_source: bool = False
    looks_at: Callable[[Errand], str] | None = None
    """The account whose balance must be known first."""


KINDS = (
    ErrandKind("Move {n} from {a} to {b}, then tell me the balance of {b}.", "transfer", lambda _, e: e.number),
    ErrandKind("Transfer {n} from {a} to {b}. What is left in {a}?", "transfer", lambda _, e: e.number, True),
    ErrandKind("Put {n} into {a}. How much is in it then?", "deposit", lambda _, e: e.number, True),
    ErrandKind("Take {n} out of {a}. How much is left?", "withdraw", lambda _, e: e.number, True),
    ErrandKind(
        "Move all but {n} from {a} to {b}. How much is in {b} then?",
        "transfer",
        lambda balances, e: balances[e.source] - e.number,
        looks_at=lambda e: e.source,
    ),
    ErrandKind(
        "Fill {b} up to {n} from {a}. What is left in {a}?",
        "transfer",
        lambda balances, e: e.number - balances[e.to],
        asks_for_source=True,
        looks_at=lambda e: e.to,
    ),
)


@task("bank")
class Bank(Task):
    """Transfers at a bank, solved with the bank tool."""

    HELP = "errands at a bank: a tool with state whose own judgement is the reward"
    DATA_SOURCE = "agentrl/bank"
    ABILITY = "tools"
    TOOLS = "tools/bank.yaml"

    def draw(self, rng: random.Random) -> Problem:
        """Accounts, and an errand that moves at least one coin and never more than there is."""
        names = rng.sample(ACCOUNTS, 3)
        balances = {name: rng.randint(20, 500) for name in names}
        errand = Errand(rng.choice(KINDS), names[0], names[1], rng.randint(5, 300))
        while not 0 < errand.kind.moved(balances, errand) <= balances[errand.source]:
            errand = Errand(errand.kind, errand.source, errand.to, rng.randint(5, 600))
        target = after(balances, errand)
        answer = str(target[asked(errand)])
        question = errand.kind.text.format(n=errand.number, a=errand.source, b=errand.to)
        extra_info = {
            "answer": answer,
            "need_tools_kwargs": True,
            "tools_kwargs": {"bank": {"create_kwargs": {"balances": balances, "target": target}}},
        }
        return Problem(question, answer, extra_info, solution=errand)

    def demonstrate(self, problem: Problem, rng: random.Random) -> Script:
        """Read a balance if needed, transfer the money, state the balance."""
        errand: Errand = problem.solution
        known: Balances = {}
        if errand.kind.looks_at is not None:
            shown = yield call("bank", 0, action="balance", account=errand.kind.looks_at(errand))
            known = read(shown)
        destination = {"to": errand.to} if errand.kind.action == "transfer" else {}
        amount = errand.kind.moved(known, errand)
        shown = yield call("bank", 1, action=errand.kind.action, account=errand.source, amount=amount, **destination)
        yield say(f"The balance of {asked(errand)} is {read(shown)[asked(errand)]}.")


def after(balances: Balances, errand: Errand) -> Balances:
    """The accounts once the errand is done."""
    amount = errand.kind.moved(balances, errand)
    changes = {errand.source: amount if errand.kind.action == "deposit" else -amount}
    if errand.kind.action == "transfer":
        changes[errand.to] = amount
    return {name: balance + changes.get(name, 0) for name, balance in balances.items()}


def asked(errand: Errand) -> str:
    """The account whose balance is asked for."""
    return errand.source if errand.kind.asks_for_source else errand.to


def read(shown: str) -> Balances:
    """Balances from the tool's answer, "checking: 30, savings: 70"."""
    pairs = (item.split(": ") for item in shown.split(", "))
    return {name: int(amount) for name, amount in pairs}
