"""Finds the tokens that end a turn."""

from collections.abc import Iterable, Sequence

from agentrl.chat.fixed_base import DOCUMENT_ENDS
from agentrl.chat.formats import call_ends
from agentrl.chat.parsers import Parser, format_stops, parser_for
from agentrl.chat.segments import Segmenter
from agentrl.chat.template import Template
from agentrl.core.errors import UserError


def further_ends(
    template: Template, parser: Parser, format: str, readers: Sequence[str], stop_token_ids: Sequence[int]
) -> list[str]:
    """Texts that may end a turn besides the one that the template writes after a turn without calls."""
    eos = [template.tokenizer.eos_token] if template.tokenizer.eos_token else []
    calls = call_ends(template, parser) or [
        end for name in readers[:1] for end in call_ends(template, parser_for(name))
    ]
    model = [template.added_tokens[i] for i in stop_token_ids if i in template.added_tokens]
    known = [end for end in (*format_stops(format), *DOCUMENT_ENDS) if template.token_id(end) is not None]
    return [*eos, *calls, *model, *known]


def turn_stops(template: Template, segmenters: Iterable[Segmenter]) -> tuple[int, ...]:
    """The tokens that end a turn, sorted; never empty. Raises UserError where there is none."""
    ends = {end for segmenter in segmenters for end in _ends(template, segmenter)}
    if not ends:
        raise UserError("tokenizer: it has no end-of-sequence token and the chat template ends turns with none")
    return tuple(sorted(ends))


def _ends(template: Template, segmenter: Segmenter) -> set[int]:
    base, ends = segmenter.base, set(segmenter.end_ids)
    # gpt-oss ends a turn of the history with <|end|>, which a sampled turn also writes after its thinking: only the
    # token that ends the last turn stops the model.
    if base.explicit and base.turn_end and not base.closing.startswith(base.turn_end):
        ends.discard(template.token_id(base.turn_end) or -1)
    return ends
