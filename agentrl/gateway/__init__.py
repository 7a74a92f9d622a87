"""Agents that speak OpenAI's, Anthropic's or Google's protocol, recorded token by token."""
