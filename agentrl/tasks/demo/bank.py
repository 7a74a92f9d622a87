"""Errands at a bank: a tool with state, and a reward from the tool itself.

Each row opens new accounts. The model looks at balances and moves money; at the end the tool's calc_reward
compares the accounts with what the errand should have made of them. Some errands cannot be done without looking at a
balance first.
"""

import random
from dataclasses import dataclass

from agentrl.core.foreign import read_beside
from agentrl.core.points import task
from agentrl.tasks.demo.base import Problem, Script, Task, call, say

ACCOUNTS = ("checking", "savings", "rent", "travel", "food", "garden", "gifts", "school")
Balances = dict[str, int]


KINDS = read_beside(__file__, "bank.yaml")


@dataclass(frozen=True)
class Errand:
    """An order for the accounts `source` and `to`; `number` is the amount, or the balance to leave or to reach."""

    kind: dict[str, str]
    source: str
    to: str
    number: int

    @property
    def looks_at(self) -> str | None:
        """The account whose balance must be known first."""
        return {"all but": self.source, "up to": self.to}.get(self.kind["moves"])

    def moved(self, balances: Balances) -> int:
        """The money that it moves."""
        if self.looks_at is None:
            return self.number
        rest = balances[self.looks_at] - self.number
        return rest if self.looks_at == self.source else -rest

    @property
    def asked(self) -> str:
        """The account whose balance is asked for."""
        return self.source if self.kind["asks"] == "source" else self.to


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
        while not 0 < errand.moved(balances) <= balances[errand.source]:
            errand = Errand(errand.kind, errand.source, errand.to, rng.randint(5, 600))
        target = after(balances, errand)
        answer = str(target[errand.asked])
        question = errand.kind["text"].format(n=errand.number, a=errand.source, b=errand.to)
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
        if errand.looks_at is not None:
            shown = yield call("bank", 0, action="balance", account=errand.looks_at)
            known = read(shown)
        destination = {"to": errand.to} if errand.kind["action"] == "transfer" else {}
        amount = errand.moved(known)
        shown = yield call("bank", 1, action=errand.kind["action"], account=errand.source, amount=amount, **destination)
        yield say(f"The balance of {errand.asked} is {read(shown)[errand.asked]}.")


def after(balances: Balances, errand: Errand) -> Balances:
    """The accounts once the errand is done."""
    amount = errand.moved(balances)
    changes = {errand.source: amount if errand.kind["action"] == "deposit" else -amount}
    if errand.kind["action"] == "transfer":
        changes[errand.to] = amount
    return {name: balance + changes.get(name, 0) for name, balance in balances.items()}


def read(shown: str) -> Balances:
    """Balances from the tool's answer, "checking: 30, savings: 70"."""
    pairs = (item.split(": ") for item in shown.split(", "))
    return {name: int(amount) for name, amount in pairs}
