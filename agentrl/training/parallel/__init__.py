"""One model on several processes: process group, sharded parameters, sequence parallelism."""
