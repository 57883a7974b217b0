"""Contrastive training of the reward model: branch tokens at their positions, rivals, and the loss."""

from __future__ import annotations

import random
from itertools import combinations, islice

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from reason.models.checkpoint import find_model
from reason.tasks.synthetic.draw import distinct_exercises
from reason.tasks.synthetic.exercise import CONCLUSION, DELIMITER, ExactWriter
from reason.tasks.synthetic.families import FAMILIES
from reason.training.classifier import DeepenedClassifier, deepen_model
from reason.training.contrast import ContrastLoss, SolutionPlaces, digit_ids, draw_rivals, with_branches
from reason.training.examples import ANY, IGNORE, NONE, ExampleEncoder
from reason.training.loop import Batch, TrainingRecipe, build_optimizers
from reason.training.stream import collate_examples

VOCAB = 40


def language_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, intermediate_size=48, num_attention_heads=2,
        attention_bias=True, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def batch_of(*lengths: tuple[int, int]) -> Batch:
    """Random rows with these numbers of prompt and solution tokens."""
    longest = max(map(sum, lengths))
    ids = torch.randint(0, VOCAB, (len(lengths), longest), generator=torch.Generator().manual_seed(0))
    next_ids = torch.full_like(ids, IGNORE)
    for row, (prompt, solution) in enumerate(lengths):
        next_ids[row, prompt - 1 : prompt + solution - 1] = ids[row, prompt : prompt + solution]
    return {"ids": ids, "next_ids": next_ids, "rivals": torch.full_like(ids, ANY)}


def test_deepened_model_has_the_logits_of_the_original() -> None:
    model = language_model(0)
    ids = batch_of((4, 8))["ids"]
    deep = deepen_model(model, 3)
    with torch.no_grad():
        assert torch.allclose(deep.language(deep(input_ids=ids)), model(ids).logits, rtol=1e-4, atol=1e-4)
    assert deep.config.num_hidden_layers == 5


def test_branch_token_is_read_at_its_position_and_is_masked_from_the_rest() -> None:
    batch = batch_of((3, 5), (4, 2), (1, 7))
    ids, places = batch["ids"], SolutionPlaces.from_next_ids(batch["next_ids"])
    branches = (ids.gather(1, places.at) + 1) % VOCAB
    model = deepen_model(language_model(1), 1).eval()
    with torch.no_grad():
        path_states, side = model(**with_branches(ids, places, branches)).split([ids.shape[1], branches.shape[1]], 1)
        assert torch.allclose(path_states, model(input_ids=ids), atol=1e-4)
        for row, column in places.real.nonzero().tolist():
            at = int(places.at[row, column])
            alone = torch.cat([ids[row, :at], branches[row, column : column + 1]])[None]
            assert torch.allclose(side[row, column], model(input_ids=alone)[0, -1], atol=1e-4)


def test_solution_places_are_the_positions_of_the_solutions() -> None:
    batch = batch_of((3, 5), (4, 2))
    places = SolutionPlaces.from_next_ids(batch["next_ids"])
    assert [row[real].tolist() for row, real in zip(places.at, places.real, strict=True)] == [[3, 4, 5, 6, 7], [4, 5]]


def test_drawn_rival_is_another_token_of_the_target_distribution() -> None:
    digits = torch.zeros(VOCAB, dtype=torch.bool)
    digits[:10] = True
    tokens = torch.tensor([[3, 20]] * 500)
    logits = torch.full((500, 2, VOCAB), -1e4)
    logits[:, 0, 3] = logits[:, 1, 20] = torch.log(torch.tensor(0.75))
    logits[..., 30] = torch.log(torch.tensor(0.25))
    drawn = draw_rivals(logits, tokens, torch.full_like(tokens, ANY), digits)
    assert bool((drawn.tokens != tokens).all())
    assert torch.allclose(drawn.right, torch.tensor(0.75))
    assert torch.allclose(drawn.wrong, torch.tensor(0.25))
    assert set(drawn.tokens[:, 1].tolist()) == {30}
    first = drawn.tokens[:, 0]
    assert set(first[~digits[first]].tolist()) == {30}
    assert set(first[digits[first]].tolist()) == set(range(10)) - {3}
    assert 0.15 < digits[first].float().mean() < 0.35


def test_known_rival_is_weighted_by_its_target_probability() -> None:
    logits = torch.randn(1, 2, VOCAB)
    drawn = draw_rivals(logits, torch.tensor([[3, 4]]), torch.tensor([[7, NONE]]), torch.zeros(VOCAB, dtype=torch.bool))
    p = logits.softmax(-1)[0]
    assert drawn.tokens[0, 0] == 7
    assert torch.allclose(drawn.wrong[0], torch.stack([p[0, 7], 1 - p[1, 4]]))


@pytest.mark.parametrize("family", FAMILIES)
def test_right_alternative_token_is_no_rival(family: str) -> None:
    """Where two right solutions of a problem part, neither's token is the other's rival; and they never part on whether
    to conclude, which is the rival of every step's beginning."""
    tokenizer = AutoTokenizer.from_pretrained(find_model("bundled:target").source)
    encode = ExampleEncoder(tokenizer)
    conclusion = tokenizer.encode(CONCLUSION)[0]
    for exercise in islice(distinct_exercises(0, "train", weights={family: 1.0}), 10):
        solutions = {exercise.write_solution(ExactWriter(), random.Random(seed)) for seed in range(12)}
        for one, other in combinations([encode(exercise, solution) for solution in solutions], 2):
            at = next(i for i, (a, b) in enumerate(zip(one.ids, other.ids, strict=False)) if a != b)
            for mine, theirs in ((one, other), (other, one)):
                assert mine.rivals[at - mine.prompt_length] in (NONE, conclusion)
                assert theirs.ids[at] != conclusion
        for solution in solutions:
            example = encode(exercise, solution)
            assert len(example.rivals) == len(example.ids) - example.prompt_length
            assert example.rivals.count(conclusion) == solution.count(DELIMITER)
            assert exercise.verifier_only == (ANY not in example.rivals)


def test_contrast_loss_raises_the_odds_of_right_tokens_and_keeps_the_language() -> None:
    """Solutions repeat their prompt and the writer is random. After some steps, right tokens have higher odds."""
    torch.manual_seed(0)
    ids = torch.randint(0, VOCAB, (32, 4)).repeat(1, 2)
    batch = batch_of(*[(4, 4)] * 32) | {"ids": ids}
    batch["next_ids"][:, 3:7] = ids[:, 4:]
    model: DeepenedClassifier = deepen_model(language_model(2), 1).train()
    loss_of = ContrastLoss([language_model(3)], torch.zeros(VOCAB, dtype=torch.bool))
    opts = build_optimizers(model, TrainingRecipe(tokens=1), model.rate_of)
    losses = []
    for _ in range(150):
        losses.append(loss_of(model, batch))
        losses[-1].backward()  # type: ignore[no-untyped-call]
        for opt in opts:
            opt.step()
            opt.zero_grad()
    assert losses[-1] < 0.7 * losses[0]
    places = SolutionPlaces.from_next_ids(batch["next_ids"])
    with torch.no_grad():
        path_states, side = model(**with_branches(ids, places, (ids[:, 4:] + 7) % VOCAB)).split([8, 4], 1)
    assert (model.right_log_odds(path_states[:, 4:]) > model.right_log_odds(side)).float().mean() > 0.9


def test_contrast_loss_ignores_rivals_that_are_not_surely_wrong() -> None:
    batch = batch_of((3, 5), (4, 2))
    loss_of = ContrastLoss([language_model(3), language_model(4)], torch.zeros(VOCAB, dtype=torch.bool))
    model = deepen_model(language_model(2), 1)
    free = batch | {"rivals": torch.full_like(batch["rivals"], NONE)}
    torch.manual_seed(0)
    assert len({round(loss_of(model, free).item(), 4) for _ in range(5)}) == 1
    assert len({round(loss_of(model, batch).item(), 4) for _ in range(5)}) > 1


def test_digit_ids_are_found_in_the_vocabulary() -> None:
    tokenizer = AutoTokenizer.from_pretrained(find_model("bundled:target").source)
    texts = [tokenizer.decode([i]) for i in digit_ids(tokenizer, 576).nonzero()[:, 0].tolist()]
    assert {text.strip() for text in texts} == set("0123456789")
    example = ExampleEncoder(tokenizer)(next(distinct_exercises(0, "train", weights={"recurrence": 1.0})), "x1: 3.")
    assert collate_examples([example], 1)["rivals"][0, example.prompt_length :].tolist() == example.rivals
