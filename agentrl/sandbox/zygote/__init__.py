"""An interpreter that waits, warm, in the midst of its own start, to be forked for one run after another."""

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that keep libraries from starting threads when they are imported: no thread outlives a fork, and OpenBLAS
waits for its own, for ever, when it is forked once more."""
