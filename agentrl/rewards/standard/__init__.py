"""The scores that verl gives on the data sets it knows: the same number on every answer, a strange one too.

One module a data set, with verl's names and signatures. They compare text by fixed rules, so they are strict in some
places and lenient in others; `agentrl.rewards.scorers`, `maths` and `questions` compare what the answers mean.
Where versions of verl differ, the newest counts (0.9.1). `functions` makes reward functions of them.
"""
