"""The zygote: an interpreter that stops during its own start, with modules imported, and is forked for each run."""
