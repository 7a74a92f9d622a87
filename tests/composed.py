"""Composes a configuration: processes that are forked afterwards have the schema and the shipped files in memory."""

from agentrl.config import compose

compose(checks=())
