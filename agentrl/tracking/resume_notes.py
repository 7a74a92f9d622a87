"""The lines that say where a run resumes, and how to resume one that was stopped."""


def resuming_from(step: int, total: int) -> str:
    """The first line of a run that resumes from the checkpoint of `step` and has `total` steps."""
    if step < total:
        return f"Resuming from step {step}. For a new run, set trainer.resume_mode=disable, or name another folder."
    return (
        f"This run has finished: all {total} steps are taken. For more, raise trainer.total_training_steps or "
        "trainer.total_epochs. For a new run, set trainer.resume_mode=disable, or name another folder."
    )


def how_to_resume(start: int, taken: int, saved: int, mode: str) -> str:
    """The last line of a run that began after step `start` and was stopped after step `taken`.

    `saved`: the newest checkpoint in its folder, 0 for none; `mode`: its trainer.resume_mode.
    """
    if taken == start:
        again = f"resumes from step {start}" if start else "starts over"
        return f"no step was finished, so nothing is lost; the same command {again}"
    same = "the same command" if mode == "auto" else "the same command with trainer.resume_mode=auto"
    same = same.replace("=auto", "=auto and without trainer.resume_from_path") if mode == "resume_path" else same
    again = f"starts again from step {start}" if start else "starts over"
    resumes = f"{same} resumes from step {saved}" if saved else f"the same command {again}"
    lost = range(max(saved, start) + 1, taken + 1)
    if not lost:
        return f"step {taken} is saved; {resumes}"
    steps = f"steps {lost[0]} to {taken} are" if len(lost) > 1 else f"step {taken} is"
    return f"{steps} lost; {resumes}"
