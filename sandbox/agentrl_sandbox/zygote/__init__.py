"""An interpreter that waits, warm, in the midst of its own start, to be forked for one run after another."""
