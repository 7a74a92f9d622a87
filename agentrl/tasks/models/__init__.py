"""Models to start from: a small pretrained chat model, and a tiny one made from scratch.

Each is prepared once into a folder in Hugging Face format (`store.make_once`), so that whatever
loads models needs to know nothing about where this one came from.
"""
