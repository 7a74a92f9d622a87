"""The `agent_data` argument of `execute`, as tools written for verl 0.7 and later expect it."""

from typing import Any


class AgentData:
    """A view of the agent loop's own object, with verl's names: request_id, tools_kwargs, extra_fields.

    Everything else is read from the object itself. Attributes that a tool sets stay on the view, which lives as
    long as the trajectory.
    """

    def __init__(self, inner: Any, request_id: str, tools_kwargs: Any) -> None:
        self.inner = inner
        self.request_id = request_id
        self.tools_kwargs = tools_kwargs
        extra = getattr(inner, "extra", None)
        self.extra_fields: dict[str, Any] = extra if isinstance(extra, dict) else {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def agent_data_for(inner: Any, request_id: str, tools_kwargs: Any) -> Any:
    """`inner` as it is where it has verl's shape already, a view of it otherwise."""
    return inner if hasattr(inner, "request_id") else AgentData(inner, request_id, tools_kwargs)
