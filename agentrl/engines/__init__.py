"""Engines: token ids in, sampled tokens with log-probs out. One in this process, SGLang and vLLM as servers."""
