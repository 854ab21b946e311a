"""Write docs/templates.md: what every chat template that TRL ships makes of conversations.

    python docs/make_template_table.py

TRL (a development dependency) ships the templates of the large model families, as deployed and
as it patches them for training. Weights and vocabularies are not needed: each template is put on
a byte-level tokenizer that has the tokens which the template writes.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vf.inference.rendering.probe_script import CONVERSATIONS
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.template_probe import Verdict, probe

PAGE = Path(__file__).with_name("templates.md")
FAMILIES = {
    "cohere": "Cohere",
    "deepseek_r1": "DeepSeek-R1-distill",
    "deepseekv3": "DeepSeek-V3",
    "diffusion_gemma": "Gemma",
    "gemma": "Gemma",
    "glm4moe": "GLM-4-MoE",
    "gptoss": "gpt-oss",
    "idefics3": "Idefics3",
    "lfm2": "LFM2",
    "llama3": "Llama 3",
    "llava": "LLaVA-NeXT",
    "muse": "Muse Glimmer",
    "nemotron": "Nemotron 3",
    "phi3": "Phi-3",
    "qwen2_5": "Qwen2.5",
    "qwen3_5": "Qwen3.5",
    "qwen3_6": "Qwen3.6",
    "qwen3_8": "Qwen3.8",
    "qwen3": "Qwen3",
    "smolvlm": "SmolVLM",
}
_SPECIAL = re.compile(
    r"<\|[^|<>\s]+\|>|<\|[a-z_\"]+>|<[a-z_]+\|>|<(?:start|end)_of_[a-z]+>|\[gMASK\]|<sop>|</s>"
)
_ADDED = re.compile(r"<｜[^｜<>]+｜>|</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
# First and last token of a sequence, where the family's are not <s> and <|im_end|>.
_ENDS = {
    "Cohere": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "DeepSeek-R1-distill": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "DeepSeek-V3": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "Gemma": ("<bos>", "<eos>"),
    "GLM-4-MoE": ("[gMASK]", "<|endoftext|>"),
    "gpt-oss": ("<|startoftext|>", "<|return|>"),
    "Idefics3": ("<|begin_of_text|>", "<end_of_utterance>"),
    "Llama 3": ("<|begin_of_text|>", "<|eot_id|>"),
    "LLaVA-NeXT": ("<s>", "</s>"),
    "Muse Glimmer": ("<|begin_of_text|>", "<|eot|>"),
    "Phi-3": ("<s>", "<|endoftext|>"),
    "SmolVLM": ("<|im_start|>", "<end_of_utterance>"),
}
_HEAD = """\
# Chat templates

In a conversation of several turns, the prompt of each turn must begin with every token of the turns
before it, including the sampled ones. Otherwise the trace forks a branch, and sampled tokens are
trained in a context that the model never saw, or trained twice. A chat template alone does not
guarantee this: many rewrite the history (they strip reasoning, or close earlier turns differently).

`vf-rl check-template MODEL` prints the verdicts for one model, and every run's plan summarises them
in one line. The verdicts are:

| verdict | meaning |
|---|---|
| increasing | rendering the whole conversation again extends the sampled tokens, in every turn |
| bridged | the template rewrites or refuses history; only the bridge keeps the context growing |
| forks | a turn starts a new branch |
| refused | the template cannot express the conversation; the reasons are under the table |

The conversations have three to five turns: *plain*, with *tools* (one call at a time), with
*parallel calls*, with *reasoning*, with *reasoning and tools*, and *truncated* (answers that were
cut off before their stop token). Reasoning and calls that a template does not show are sampled
anyway, as `<think>` and in the Hermes format.

## Which path a model takes

Every model takes the same path: its template renders the first prompt, and from then on only the
*bridge*, the tokens between one sampled answer and the next, which is derived from the template
(`inference/rendering/seam.py`). Nothing is listed per family, so a fine-tune or a local folder is
treated according to its own template. A truncated answer is closed with tokens that carry no loss.
The whole conversation is rendered again only if the template refuses the bridge; the trace forks
unless the result extends it. `TokenModel(thinking_history="template")` instead renders everything
again in every turn: the model then sees what the deployed template would show it, and a template
that is not *increasing* forks.

Agents may send several system messages, or one in the middle of a conversation. Templates that do
not support this refuse them (Qwen3.5), leave them out (gpt-oss) or move them to the front
(DeepSeek-V3). System messages at the start are then joined, and later ones are shown as user
messages.

The package `renderers` (0.1.12, Apache-2.0, 24,201 lines of Python) has hand-written bridges for
some large families. In 120 turns of 12 templates below, its bridge and the one derived here were
identical in 110; in the other 10 (both DeepSeeks) it opens the answer differently from the
template. It is not used, because it knows models by their exact names and re-renders every turn of
all others (a fine-tune, a local folder), and its gpt-oss renderer needs a download when it is
created.

A template is a program that comes with the model. Before its first use it renders a few short
conversations in a process with 1 GiB of memory and 5 s of processor time; one that takes more is
refused. Each later rendering has 30 s. One case remains open: a single call that makes gigabytes of
text (`'x'.center(10**10)`) in a branch that none of the short conversations takes. Use templates
from people you trust.

## A template that hides the tools, or none at all

Many templates leave tools out: those of SmolLM2, Gemma 2 and 3, Phi-3, and all marked "the prompt
does not show the tools" in the table below. In an environment with tools, such a model cannot see
them, so a training run refuses to start, `vf-rl eval` warns before it begins and above its results,
and the embedded engine's API refuses `tools`. A base model often has no template at all. Two
settings help. They are in `[inference]` of a run's TOML, and are options of `vf-rl eval` and `vf-rl
serve`:

- `chat_template = "chatml"`: ChatML with tools in the Hermes and Qwen format. It ships with vf-rl,
  and is for models, including base models, whose vocabulary has `<|im_start|>` and `<|im_end|>`.
- `chat_template = "plain"`: `User: ...` and `Assistant: ...`; an answer ends with the tokenizer's
  end-of-text token. It ships with vf-rl, and is for base models with any vocabulary. It shows no
  tools: add `tool_style = "text"` in an environment with tools.
- `chat_template = "mine.jinja"`: your own file. `vf-rl check-template MODEL --chat-template
  mine.jinja` tests it.
- `tool_style = "text"`: the model's own template, with tools, calls and results as text in the
  roles that it supports. It is also for servers that do not accept tools: `ChatModel(...,
  tool_style="text")`, or `vf-rl eval` with `-b URL --tool-style text`.

With `tool_style = "text"`, the end of the system prompt lists the tools with their JSON schemas,
one per line between `<tools>` and `</tools>`. If the template has no system role, the list comes
before the first user message. The model makes calls, and reads the results in a user message:

    <tool_call>
    {{"name": "calculate", "arguments": {{"op": "+", "a": 3, "b": 4}}}}
    </tool_call>

    <tool_response>
    7
    </tool_response>

Several calls in one answer each have their own tags; a JSON list between one pair also works. A
call that cannot be parsed is answered with the reason. None of this affects the environment: it
sees the same messages and tool calls, the context grows as with any template, and results carry no
loss. A checkpoint is saved with the template that it was trained with. `tool_style` is not part of
a model, so set it again when you evaluate or serve the checkpoint.

A model that was never trained to call tools will rarely do so just because a prompt explains how:
with SmolLM2-135M-Instruct, one of 12 rollouts of `calculator` made a call. First fine-tune it with
`vf-rl sft` on traces of a model that can call tools.

## Verdicts

Regenerate this page with `python docs/make_template_table.py`; a test compares it. The templates
are those that TRL {trl} ships, as deployed and, with the suffix `_training`, as TRL patches them.
Each is tested with a byte-level tokenizer that has the tokens it writes.

{counts}

"""


@cache
def templates() -> dict[str, str]:
    """Return the templates by name."""
    found = find_spec("trl")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "chat_templates"
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.jinja"))}


def family(name: str) -> str:
    """Return the family of a template; its name where that is not known."""
    return next((label for start, label in FAMILIES.items() if name.startswith(start)), name)


def tokenizer(name: str) -> Any:
    """Return a byte-level tokenizer with the tokens that a template writes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    template = templates()[name]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    bpe.train_from_iterator([template], trainer)
    bos, eos = _ENDS.get(family(name), ("<s>", "<|im_end|>"))
    special = {bos, eos, *_SPECIAL.findall(template)}
    bpe.add_special_tokens(sorted(special))
    added = sorted(set(_ADDED.findall(template)) - special)
    bpe.add_tokens([AddedToken(token, normalized=False) for token in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=bos, eos_token=eos, chat_template=template
    )


@cache
def renderer(name: str) -> Renderer:
    """Return the renderer of a template."""
    return Renderer(tokenizer(name))


@cache
def verdicts(name: str) -> list[Verdict]:
    """Probe one template."""
    return probe(renderer(name))


def page() -> str:
    """Return the page as Markdown."""
    from importlib.metadata import version

    found = {name: verdicts(name) for name in templates()}
    kinds = {name: {verdict.kind for verdict in each} for name, each in found.items()}
    alone = sum(not {"bridged", "forks"} & each for each in kinds.values())
    bridged = sum("bridged" in each and "forks" not in each for each in kinds.values())
    forks = sum("forks" in each for each in kinds.values())
    counts = (
        f"Of {len(found)} templates, {alone} keep the context growing by themselves in every\n"
        f"conversation they can express, {bridged} need the bridge in at least one, and "
        f"{forks or 'none'} fork{'s' if forks < 2 else ''}."
    )
    said = sorted({v.detail for each in found.values() for v in each if v.kind == "refused"})
    columns = ["family", "template", *CONVERSATIONS, "path", "answers end with", "notes"]
    lines = [_row(columns), _row(["---"] * len(columns))]
    lines += [_row(_cells(name, said)) for name in found]
    reasons = [f"{number}. {detail}" for number, detail in enumerate(said, 1)]
    head = _HEAD.format(trl=version("trl"), counts=counts)
    return "\n".join([head + lines[0], *lines[1:], "", "## Refusals", "", *reasons, ""])


def _cells(name: str, said: list[str]) -> list[str]:
    each = verdicts(name)
    refusals = {said.index(v.detail) + 1 for v in each if v.kind == "refused"}
    notes = [f"refusal {number}" for number in sorted(refusals)]
    if not all(verdict.tools_shown for verdict in each):
        notes.append("the prompt does not show the tools")
    tools = next(verdict for verdict in each if verdict.conversation == "tools")
    path = "bridge, no tools" if tools.kind == "refused" else "bridge"
    ends = (renderer(name).template.token(stop) for stop in renderer(name).stop_token_ids)
    tokens = " ".join(f"`{token}`".replace("|", "\\|") for token in ends)
    return [family(name), name, *(v.kind for v in each), path, tokens, "; ".join(notes)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
