"""Trains the small parts of speculation on texts that models write for the problems of `reason.tasks.synthetic`:

acceptance_head    SpecDec++ (arXiv 2405.19715): from the draft model's hidden states, whether the target accepts
judge_head         Judge Decoding (arXiv 2501.19309): from the target's hidden states, whether a draft token is right
draft_vocabulary   VocabTrim (arXiv 2506.22694): the ids that the target writes most

Shapes: W tokens of all texts, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from decoding.core import Tokens
from decoding.kv.sequence import TokenSequence
from decoding.model.backend import Backend
from decoding.model.batch import SequenceInput, pack_inputs
from decoding.speculation.drafters.acceptance_head import AcceptanceHead
from decoding.validation import MAX_INT, require_count, require_positive, require_share
from reason.build import load
from reason.models.checkpoint import find_model, load_tokenizer
from reason.models.plain_checkpoint import open_language_model
from reason.models.tokenizer import PretrainedTokenizer, require_same_vocabulary
from reason.problem import Problem
from reason.tasks.synthetic.draw import distinct_exercises
from reason.tasks.synthetic.step_checker import check_solution
from reason.training.router_metrics import roc_auc

if TYPE_CHECKING:
    from decoding.model.transformers_checkpoint import HFBackend
    from reason.tasks.synthetic.exercise import Exercise


@dataclass(frozen=True, kw_only=True)
class DraftHeadRecipe:
    """Settings of the three stages.

    target, draft    folders, hub ids or bundled:NAME; of one vocabulary
    problems         problems that texts are written for, the last tenth of which is held out
    samples          texts of each
    epochs           passes over all tokens; each is one step of AdamW on a quarter of them
    learning_rate    of AdamW
    blocks           residual blocks of the acceptance head
    target_share     share of the target's own tokens among those that the acceptance head learns after
    refusal_weight   weight of refusals in the loss of the acceptance head
    vocabulary_size  ids of the draft vocabulary

    Raises: ValueError naming the setting.
    """

    target: str = "bundled:target"
    draft: str = "bundled:draft"
    problems: int = 400
    samples: int = 2
    epochs: int = 60
    learning_rate: float = 3e-3
    blocks: int = 3
    target_share: float = 0.15
    refusal_weight: float = 6.0
    vocabulary_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        require_count("heads.problems", self.problems, at_least=10)
        for name in ("samples", "epochs", "blocks", "vocabulary_size"):
            require_count(f"heads.{name}", getattr(self, name), at_least=1)
        for name in ("learning_rate", "refusal_weight"):
            require_positive(f"heads.{name}", getattr(self, name))
        require_share("heads.target_share", self.target_share, below_one=True)
        require_count("heads.seed", self.seed, at_most=MAX_INT)


@dataclass(frozen=True)
class WrittenText:
    """A solution that a model wrote: the tokens of its prompt, its own, and the problem."""

    prompt: Tokens
    tokens: Tokens
    exercise: Exercise


def write_texts(path: str, weights: Mapping[str, float], recipe: DraftHeadRecipe, device: str) -> list[WrittenText]:
    """Returns texts of the model at `path` for problems of the training split, in the order of the problems."""
    exercises = list(islice(distinct_exercises(recipe.seed, "train", weights=weights), recipe.problems))
    problems = {
        f"{index:06}": Problem(id=f"{index:06}", question=exercise.question, answer=str(exercise.answer))
        for index, exercise in enumerate(exercises)
    }
    texts: dict[str, list[WrittenText]] = {}
    settings = ("search=self_consistency", f"search.n={recipe.samples}", "scorer=none", f"seed={recipe.seed}")
    with load(f"model.path={path}", f"engine.device={device}", "speculation=off", *settings) as solver:
        for problem, outcome in solver.solve_many(problems.values()):
            if isinstance(outcome, Exception):
                raise outcome
            tree, exercise = outcome.tree, exercises[int(problem.id)]
            texts[problem.id] = [
                WrittenText(tree.root, tree.prefix_tokens(candidate.node)[len(tree.root) :], exercise)
                for candidate in outcome.result.candidates
            ]
    return [text for _, written in sorted(texts.items()) for text in written]


def train_acceptance_head(
    texts: Sequence[WrittenText], target: HFBackend, draft: HFBackend, recipe: DraftHeadRecipe
) -> tuple[AcceptanceHead, dict[str, float]]:
    """Returns the head, trained on texts of the target, and how well it tells accepted from refused held-out tokens."""
    noise = torch.Generator().manual_seed(recipe.seed)
    drawn = [mix_tokens(text, target, draft, recipe.target_share, noise) for text in texts]
    cut = find_held_out(texts)
    hidden_WD, accepted_W = (torch.cat([each[i] for each in drawn[:cut]]) for i in range(2))
    torch.manual_seed(recipe.seed)
    size = hidden_WD.shape[1]
    blocks = [(torch.randn(size, size) * 0.02, torch.zeros(size)) for _ in range(recipe.blocks)]
    head = AcceptanceHead(blocks, (torch.zeros(size), torch.zeros(1)))
    # p log P + w (1 - p) log (1 - P) as the cross entropy of an average: a share of accepted tokens, and a weight
    weight_W = accepted_W + recipe.refusal_weight * (1 - accepted_W)
    parameters = [*(tensor for block in blocks for tensor in block), *head.out]
    _descend(parameters, hidden_WD, accepted_W / weight_W, weight_W, head.predict_logits, recipe)
    held_WD, held_W = (torch.cat([each[i] for each in drawn[cut:]]) for i in range(2))
    with torch.no_grad():
        logits = head.predict_logits(held_WD)
    refused = (held_W < 0.5).numpy()
    figures = {
        "tokens": float(len(accepted_W)),
        "accepted": float(held_W.mean()),
        "auc": roc_auc(-logits.double().numpy(), refused),
    }
    return head, figures


def mix_tokens(
    text: WrittenText, target: Backend, draft: Backend, target_share: float, noise: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Returns the draft model's hidden states `[W, D]` at its own tokens in a text, and P(accepted) of these `[W]`.

    Every token of the text is replaced, with probability 1 - `target_share`, by one that the draft model draws after
    the tokens of the text before it (SpecDec++, section 3.2); it is accepted with probability min(1, p / q).
    """
    first, whole = len(text.prompt), (*text.prompt, *text.tokens)
    log_p_WV, log_q_WV = (
        backend.apply_head(read_hidden(backend, whole)[first - 1 : -1]).float().log_softmax(-1).cpu()
        for backend in (target, draft)
    )
    drawn_W = torch.multinomial(log_q_WV.exp(), 1, generator=noise)[:, 0]
    is_drawn_W = torch.rand(len(drawn_W), generator=noise) >= target_share
    mixed_W = torch.where(is_drawn_W, drawn_W, torch.tensor(text.tokens))
    hidden_WD = read_hidden(draft, (*text.prompt, *mixed_W.tolist()))[first:].float().cpu()
    row_W = torch.arange(len(drawn_W))
    accepted_W = (log_p_WV[row_W, drawn_W] - log_q_WV[row_W, drawn_W]).exp().clamp(max=1)
    return hidden_WD[is_drawn_W], accepted_W[is_drawn_W]


def train_judge(
    texts: Sequence[WrittenText], target: HFBackend, tokenizer: PretrainedTokenizer, recipe: DraftHeadRecipe
) -> tuple[Tensor, float, dict[str, float]]:
    """Returns weight `[D]` and bias of the head, trained on texts of the draft model, and figures of held-out texts.

    `right_passed` and `wrong_passed` are shares of the right and of the wrong tokens above a probability of one half.

    Raises: ValueError where the draft model made no mistake.
    """
    labelled = [label_tokens(text, tokenizer) for text in texts]
    hidden = [
        read_hidden(target, (*text.prompt, *text.tokens[: len(labels)]))[len(text.prompt) :].float().cpu()
        for text, labels in zip(texts, labelled, strict=True)
    ]
    cut = find_held_out(texts)
    hidden_WD, right_W = torch.cat(hidden[:cut]), torch.cat(labelled[:cut])
    num_wrong = float((1 - right_W).sum())
    if not num_wrong:
        raise ValueError(
            f"{recipe.draft} made no mistake in {cut} texts, and a judge learns from them; raise heads.problems"
        )
    # both labels weigh the same, as in the paper: wrong tokens are rare
    weight_W = torch.where(right_W > 0, 1.0, float(right_W.sum()) / num_wrong)
    weight_D, bias = torch.zeros(hidden_WD.shape[1]), torch.zeros(1)
    _descend([weight_D, bias], hidden_WD, right_W, weight_W, lambda x_WD: x_WD @ weight_D + bias, recipe)
    held_W = torch.cat(labelled[cut:])
    with torch.no_grad():
        logits = torch.cat(hidden[cut:]) @ weight_D + bias
    passed, is_right = logits.numpy() > 0, held_W.numpy() > 0
    figures = {
        "tokens": float(len(right_W)),
        "wrong": num_wrong,
        "auc": roc_auc(logits.double().numpy(), is_right),
        "right_passed": float(passed[is_right].mean()),
        "wrong_passed": float(passed[~is_right].mean()) if (~is_right).any() else 0.0,
    }
    return weight_D.detach(), float(bias.detach()[0]), figures


def label_tokens(text: WrittenText, tokenizer: PretrainedTokenizer) -> Tensor:
    """Returns 1 for every token up to the first mistake of a text and 0 for that one; those after it have no label."""
    written = str(tokenizer.decode(list(text.tokens), skip_special_tokens=True))
    mistake = check_solution(text.exercise, written).first_error
    if mistake is None:
        return torch.ones(len(text.tokens))
    labels = []
    for end in range(1, len(text.tokens) + 1):
        is_before = len(str(tokenizer.decode(list(text.tokens[:end]), skip_special_tokens=True))) <= mistake
        labels.append(float(is_before))
        if not is_before:
            break
    return torch.tensor(labels)


def rank_ids(texts: Sequence[WrittenText], size: int) -> list[int]:
    """Returns the `size` most frequent ids of the texts, most frequent first; fewer where there are no more."""
    counts = Counter(token for text in texts for token in text.tokens)
    # of equals the smaller id: the same list on every machine
    return [token for token, _ in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:size]]


def read_hidden(backend: Backend, tokens: Tokens) -> Tensor:
    """Returns the hidden state after every token, `[W, D]`."""
    sequence = TokenSequence(0, tokens)
    feed = SequenceInput(sequence, len(tokens), np.arange(1, len(tokens) + 1), 0)
    batch, _ = pack_inputs([feed], backend)
    # a copy: states of inference mode cannot be trained on
    return backend.forward(batch, backend.new_kv_pool(len(tokens))).clone()


def open_pair(recipe: DraftHeadRecipe, device: str) -> tuple[HFBackend, HFBackend, PretrainedTokenizer]:
    """Returns target, draft model and the tokenizer of both. Raises: ValueError for two vocabularies."""
    paths = {"heads.target": recipe.target, "heads.draft": recipe.draft}
    sources = [find_model(path, key=key).source for key, path in paths.items()]
    tokenizers = [load_tokenizer(source) for source in sources]
    require_same_vocabulary(recipe.draft, tokenizers[1].get_vocab(), recipe.target, tokenizers[0].get_vocab())
    target, draft = (open_language_model(source, device=device, dtype="auto", attention="blocks") for source in sources)
    return target, draft, tokenizers[0]


def _descend(
    parameters: Sequence[Tensor],
    inputs_WD: Tensor,
    share_W: Tensor,
    weight_W: Tensor,
    predict: Callable[[Tensor], Tensor],
    recipe: DraftHeadRecipe,
) -> None:
    """Trains the parameters to predict the logits of shares, by weighted cross entropy. *Mutates* the parameters."""
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=1e-2)
    order = torch.Generator().manual_seed(recipe.seed)
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(inputs_WD), generator=order).tensor_split(4):
            loss = binary_cross_entropy_with_logits(predict(inputs_WD[rows]), share_W[rows], weight=weight_W[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for parameter in parameters:
        parameter.requires_grad_(False)


def find_held_out(texts: Sequence[WrittenText]) -> int:
    """Returns the index of the first text of a held-out problem, of which there are a tenth."""
    questions = list(dict.fromkeys(text.exercise.question for text in texts))
    held_out = set(questions[-(-len(questions) * 9 // 10) :])
    return next(i for i, text in enumerate(texts) if text.exercise.question in held_out)
