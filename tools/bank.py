"""Bank accounts: a tool with state for every trajectory, which scores the result.

Shows: state in a dict under `instance_id`. `create` fills it from the row, `execute` changes it, `calc_reward` scores
it, `release` drops it. A row has

    extra_info.tools_kwargs.bank.create_kwargs = {"balances": {"alice": 50, "bob": 0},
                                                  "target": {"alice": 20, "bob": 30}}
"""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from agentrl.core.errors import UserError
from agentrl.tools import BaseTool, ModelError, ToolResponse

Balances = dict[str, int]


@dataclass
class Branch:
    """The accounts of one trajectory."""

    balances: Balances
    target: Balances

    def balance(self, account: str) -> int:
        """Raises ModelError for an account that does not exist."""
        if account not in self.balances:
            raise ModelError(f"Error: there is no account {account!r}. The accounts are: {', '.join(self.balances)}.")
        return self.balances[account]

    def add(self, account: str, amount: int) -> None:
        """Move the balance by `amount`. Raises ModelError rather than let it fall below zero."""
        balance = self.balance(account)
        if balance + amount < 0:
            raise ModelError(f"Error: {account} has only {balance}.")
        self.balances[account] = balance + amount

    @property
    def solved(self) -> bool:
        """Whether every account of the target has its amount."""
        return all(self.balances.get(account) == amount for account, amount in self.target.items())


class Bank(BaseTool):
    """balance, deposit, withdraw and transfer; calc_reward is 1.0 if the accounts end at the row's target."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self.branches: dict[str, Branch] = {}

    async def create(
        self, instance_id: str | None = None, balances: Any = None, target: Any = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        """`balances` opens the accounts, `target` has their amounts at the end."""
        instance_id = instance_id or uuid4().hex
        self.branches[instance_id] = Branch(_read(balances, "balances"), _read(target or {}, "target"))
        return instance_id, ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """One action; the answer lists the balances of its accounts."""
        branch = self.branches[instance_id]
        action, account = parameters["action"], parameters["account"]
        touched = [account]
        if action == "transfer":
            touched.append(_needed(parameters, "to"))
            branch.balance(touched[1])  # must exist before any money leaves
            branch.add(account, -_needed(parameters, "amount"))
            branch.add(touched[1], parameters["amount"])
        elif action == "deposit":
            branch.add(account, _needed(parameters, "amount"))
        elif action == "withdraw":
            branch.add(account, -_needed(parameters, "amount"))
        return ", ".join(f"{name}: {branch.balance(name)}" for name in dict.fromkeys(touched))

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """1.0 or 0.0; without a target 0.0."""
        branch = self.branches[instance_id]
        return float(bool(branch.target) and branch.solved)

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Close the accounts."""
        self.branches.pop(instance_id, None)


def _read(accounts: Any, key: str) -> Balances:
    if not isinstance(accounts, dict):
        raise UserError(f"tools_kwargs.bank.create_kwargs.{key} is {accounts!r}: write a mapping of account to amount")
    # Parquet gives every row the accounts of all rows, filled with None.
    return {name: int(amount) for name, amount in accounts.items() if amount is not None}


def _needed(parameters: dict[str, Any], name: str) -> Any:
    if name not in parameters:
        raise ModelError(f"Error: {parameters['action']} needs the parameter {name!r}.")
    return parameters[name]
