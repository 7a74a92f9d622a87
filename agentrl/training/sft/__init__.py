"""Supervised fine-tuning: conversations as ledgers, and the run that trains on them."""
