"""A conversation as text, with the characters that are trained. Knows templates and rules; nothing of token ids."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.chat_text import ChatText, LeftOutError, Rendered, RewrittenError, TokenRules
from rankzero.data.tokens.image_tokens import ImageRules, Picture, Pictures
from rankzero.data.tokens.template import ChatTemplate, TemplateRefusedError
from rankzero.data.tokens.tokenizer import TokenizerParts
from rankzero.data.tokens.turns import reads_parts_only
from rankzero.errors import ConfigError

__all__ = ["Rendered", "Renderer", "TokenRules"]


class Renderer:
    """Conversations to text with spans, for one tokenizer and one set of rules."""

    def __init__(self, parts: TokenizerParts, rules: TokenRules) -> None:
        self._parts, self._rules = parts, rules
        self._pictures = None if rules.vision is None else Pictures(rules.vision)

    @cached_property
    def _template(self) -> ChatTemplate:
        """Compiled when the first chat row asks for it: raw text needs none, not even one that is valid."""
        if self._parts.chat_template is None:
            raise ConfigError(
                "the data has chat rows, but the tokenizer has no chat template",
                where="data.chat_template",
                hint="set data.chat_template to a Jinja file, take the tokenizer of the model's instruct version, or "
                "write rows as prompt and completion",
            )
        return ChatTemplate(self._parts.chat_template, self._parts.variables)

    @cached_property
    def in_parts(self) -> bool:
        """Whether the template reads contents as lists of parts alone."""
        return self._rules.vision is not None and reads_parts_only(self._template)

    def render(self, conversation: Conversation, image_root: str = ".") -> Rendered | RowProblem:
        """The row as text, or why there is none; its images are below `image_root`. Raises ConfigError where a chat
        row finds no valid template."""
        if self._rules.task == "classify":
            return _render_labelled(conversation)
        if other := _other_task(conversation):
            return other
        pictures = self._pictured(conversation, image_root)
        if isinstance(pictures, RowProblem):
            return pictures
        row = self._templated(conversation) if conversation.templated else _render_raw(conversation)
        vision = self._rules.vision
        if vision is None or isinstance(row, RowProblem):
            return row
        return _misplaced(row.text, conversation, vision) or replace(row, pictures=pictures)

    def _pictured(self, conversation: Conversation, image_root: str) -> tuple[Picture, ...] | RowProblem:
        if not conversation.images:
            return ()
        if self._pictures is not None:
            return self._pictures.of(conversation, image_root)
        what = f"the row has {len(conversation.images)} image(s), and a language model sees none"
        hint = "train a vision-language model, or remove the images"
        return RowProblem(conversation.line, "needs a vision model", what, hint)

    def _templated(self, conversation: Conversation) -> Rendered | RowProblem:
        try:
            text = ChatText(conversation, self._template, self._parts.specials, in_parts=self.in_parts)
            return text.render(self._rules)
        except TemplateRefusedError as error:
            return RowProblem(
                conversation.line, "refused by the chat template", f"the chat template says: {error}", _hint(str(error))
            )
        except LeftOutError as error:
            return RowProblem(
                conversation.line, error.reason, str(error), "set data.chat_template to one that knows tools"
            )
        except RewrittenError as error:
            return RowProblem(
                conversation.line,
                "chat template rewrites earlier turns",
                f"the chat template rewrites what stands before turn {error.turn + 1} once that turn is there: "
                f"{error.before!r} becomes {error.after!r}",
                "what is trained would not be what the model sees in use: set data.chat_template to a template that "
                'only ever appends, or mark this turn "loss": false',
            )


def _other_task(conversation: Conversation) -> RowProblem | None:
    """Why a row that is well-formed is nothing for fine-tuning on text."""
    if conversation.rejected:
        hint = "to fine-tune on the chosen answers, write them as messages"
        what = "the row has a chosen and a rejected answer: preference rows are for task dpo"
        return RowProblem(conversation.line, "preference rows are for task dpo", what, hint)
    if conversation.label is not None:
        what = "the row is a text with a label: labels are for task classify"
        hint = "to train on the text alone, say so: data.train: [{path: …, format: text}]"
        return RowProblem(conversation.line, "labels are for task classify", what, hint)
    return None


def _misplaced(text: str, conversation: Conversation, vision: ImageRules) -> RowProblem | None:
    """Why the placeholders in the text are not those of the row's images."""
    line, images, found = conversation.line, len(conversation.images), text.count(vision.placeholder)
    if found < images:
        what, hint = f"the chat template prints {found} places for {images} image(s)", "set data.chat_template"
        return RowProblem(line, "images left out by the chat template", what, hint)
    token = vision.placeholder if found > images else next((t for t in vision.reserved if t in text), None)
    if token is None:
        return None
    what = f"the text has the model's own token {token}, which stands for what is no text"
    hint = "write it in another way; an image of the row is <image> in its text"
    return RowProblem(line, "the model's image token as text", what, hint)


def _render_labelled(conversation: Conversation) -> Rendered | RowProblem:
    if conversation.label is None:
        what = "the row has no label: task classify puts texts into classes"
        hint = 'write rows as {"text": "…", "label": "…"}, or set task: sft'
        return RowProblem(conversation.line, "no label for task classify", what, hint)
    text = "".join(segment.content for segment in conversation.messages)
    return Rendered(text, [], raw=True, add_eos=False, label=str(conversation.label))


def _render_raw(conversation: Conversation) -> Rendered:
    prompt = "".join(segment.content for segment in conversation.messages if segment.role == "prompt")
    text = prompt + "".join(segment.content for segment in conversation.messages if segment.role != "prompt")
    return Rendered(text, [(len(prompt), len(text))], raw=True, add_eos=True)


def _hint(reason: str) -> str:
    lowered = reason.lower()
    if "system" in lowered:
        return "put the system text at the beginning of the first user turn, or set data.chat_template"
    if "alternat" in lowered:
        return "this template wants user and assistant in turn: join turns of the same role, or set data.chat_template"
    return "change the row to what the template expects, or set data.chat_template to another template"
