"""Task folders in the formats of Harbor and Terminal-Bench, run as they are."""
