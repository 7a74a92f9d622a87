"""Agents that speak OpenAI's or Anthropic's protocol, recorded token by token."""
