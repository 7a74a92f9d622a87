"""Tasks and models to start from: the demo tasks of `agentrl data`, the models of `agentrl model`."""
