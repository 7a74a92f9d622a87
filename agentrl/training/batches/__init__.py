"""Packed batches: their tensors, how they are built from trajectories and split between ranks."""
