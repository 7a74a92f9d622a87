# The README's demos: each makes its rows and its model, warms the model up, and trains it. The Makefile includes this.

# Three in four demonstrations state a number of the question instead of the calculator's result: they show the format of
# a conversation, with a mistake that only the reward can correct.
SLOPPY := --slips parrot --sloppiness 0.75 --retries 0
DEMO_TASK := arithmetic --train 512 --val 64 --demos 240 --difficulty easy $(SLOPPY)
CODE_TASK := programs --train 256 --val 48 --demos 200
TINY_TASK := arithmetic --train 1000 --val 100 --demos 3000 --difficulty tiny --slips parrot --sloppiness 0.5 --retries 0
TERMINAL_TASK := terminal --train 300 --val 64 --demos 500

# A real chat model and a task; a short supervised warm-up that shows the tool's format; then the run.
demo: $(VENV)/.run
	$(BIN)/agentrl model smollm2 .cache/models/smollm2
	$(BIN)/agentrl data $(DEMO_TASK) --out .cache/data/demo
	$(BIN)/agentrl sft --config-name demo_sft
	$(BIN)/agentrl train --config-name demo rollout.multi_turn.enable=true

tiny: $(VENV)/.run
	$(BIN)/agentrl data $(TINY_TASK) --out .cache/data/tiny
	$(BIN)/agentrl model tiny .cache/models/tiny --tokenizer-data .cache/data/tiny/sft.jsonl
	$(BIN)/agentrl sft --config-name tiny_sft
	$(BIN)/agentrl train --config-name tiny rollout.multi_turn.enable=true

# The same model writes small functions: it tries them in the code sandbox, and hidden tests score its answer.
code: $(VENV)/.run
	$(BIN)/agentrl model smollm2 .cache/models/smollm2
	$(BIN)/agentrl data $(CODE_TASK) --out .cache/data/code
	$(BIN)/agentrl sft --config-name code_sft
	$(BIN)/agentrl train --config-name code rollout.multi_turn.enable=true

# A model from scratch trains on chores with a shell, each trajectory in a container of agentrl's own sandbox.
terminal: $(VENV)/.run
	$(BIN)/agentrl data $(TERMINAL_TASK) --out .cache/data/terminal
	$(BIN)/agentrl model tiny .cache/models/terminal --tokenizer-data .cache/data/terminal/sft.jsonl
	$(BIN)/agentrl sft --config-name terminal_sft
	$(BIN)/agentrl train --config-name terminal
