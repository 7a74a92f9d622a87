"""Loggers to services outside: one small file each, imported when `trainer.logger` names it."""
