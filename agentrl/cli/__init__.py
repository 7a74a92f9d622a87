"""The command line: one module a command, each with configure(parser) and run(args).

Invariant: nothing here imports torch, transformers or Hydra before a command really runs.
"""
