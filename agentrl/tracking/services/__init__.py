"""Loggers to services outside, imported when `trainer.logger` names one."""
