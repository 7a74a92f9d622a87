"""The output head: log-probs and entropies from hidden states in bounded memory."""
