"""The models of a run: policy, critic, frozen reference."""
