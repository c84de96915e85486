"""The policy's logprobs and loss against transformers' own forward pass, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_builders import VOCAB, mixed_batch, plain_gradient, plain_logprobs, plain_loss, row, save_tiny_model
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    MistralConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentrl.errors import TrainerError
from agentrl.types import Batch, Row, TrainRow, VersionSpan
from agentrl_trainers.algorithms.aggregation.denominators import Denominators, denominators
from agentrl_trainers.attention import SEGMENTS, attention_name
from agentrl_trainers.collate import check_batch, collate
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.logprob_check import max_logprob_diffs
from agentrl_trainers.logprobs import chunked_logprobs, token_logprobs
from agentrl_trainers.model import LogprobHead, PolicyModel, load_policy
from agentrl_trainers.objective import Objective
from agentrl_trainers.policy_loss import SUMMED, Share, forward, policy_loss, step_metrics

OBJECTIVE = Objective.of(TrainerConfig())


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["segments", "sdpa"])
def policy(request: pytest.FixtureRequest, model_dir: Path) -> PolicyModel:
    return load_policy(model_dir, attention=request.param, logit_chunk=1024)


@pytest.fixture
def plain(model_dir: Path) -> Qwen3ForCausalLM:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")


def trained_logprobs(plain: Qwen3ForCausalLM, rows: list[TrainRow]) -> torch.Tensor:
    parts = [plain_logprobs(plain, one)[torch.tensor(one.loss_mask[1:]).bool()] for one in rows]
    return torch.cat(parts)


def gradient_of(policy: PolicyModel, share: Share) -> dict[str, torch.Tensor]:
    policy.zero_grad()
    share.loss.backward()
    return {
        name: parameter.grad.clone() for name, parameter in policy.lm.named_parameters() if parameter.grad is not None
    }


def test_temperature_divides_logits_not_logprobs() -> None:
    """Case 14: logits [2, 1, 0] at T = 0.5, token 0: -log(1 + e^-2 + e^-4) = -0.1429; raw would be -0.4076."""
    logprobs, _ = token_logprobs(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), torch.tensor([0.5]))
    assert logprobs.item() == pytest.approx(-0.1429, abs=5e-5)


def test_entropy_of_a_uniform_distribution_is_the_log_of_its_size() -> None:
    _, entropy = token_logprobs(torch.zeros(1, 5), torch.tensor([2]), torch.ones(1))
    assert entropy.item() == pytest.approx(1.6094379)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_change_neither_values_nor_gradients(chunk: int) -> None:
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(6, 11), torch.randn(7, 6)
    targets, temperature = torch.arange(7), torch.linspace(0.5, 1.5, 7)
    results = []
    for size in (chunk, 100):
        head.zero_grad()
        leaf = hidden.clone().requires_grad_()
        logprobs, entropy = chunked_logprobs(head, leaf, targets, temperature, chunk=size)
        (logprobs * torch.arange(7.0)).sum().backward()
        results.append((logprobs.detach(), entropy, leaf.grad, head.weight.grad.clone()))
    for chunked, whole in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("packed", [True, False])
def test_rows_together_have_the_logprobs_they_have_alone(
    policy: PolicyModel, plain: Qwen3ForCausalLM, packed: bool
) -> None:
    """Packed sequences do not see each other, padding is seen by nobody, temperature 0.5 and 1 mix."""
    rows = mixed_batch().rows
    logprobs, _ = forward(policy, collate(rows, packed=packed))
    torch.testing.assert_close(logprobs, trained_logprobs(plain, rows), rtol=1e-5, atol=1e-5)


def test_another_rows_tokens_change_nothing(policy: PolicyModel) -> None:
    """Packed behind two different neighbours, a row's logprobs are bit-identical."""
    first, second, third = row(9, seed=1), row(9, seed=2), row(6, seed=3)
    together = [forward(policy, collate([other, third], packed=True))[0][-3:] for other in (first, second)]
    assert torch.equal(*together)


@pytest.mark.parametrize("packed", [True, False])
def test_loss_and_gradient_equal_the_double_loop(
    policy: PolicyModel, plain: Qwen3ForCausalLM, model_dir: Path, packed: bool
) -> None:
    batch = mixed_batch()
    share = policy_loss(policy, collate(batch.rows, packed=packed), denominators(batch.rows), OBJECTIVE)
    assert share.loss.item() == pytest.approx(plain_loss(plain, batch).item(), rel=1e-5)
    expected = plain_gradient(model_dir, batch)
    for name, gradient in gradient_of(policy, share).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("poison", [1e6, float("nan")])
@pytest.mark.parametrize("packed", [True, False])
def test_values_at_masked_slots_cannot_leak(policy: PolicyModel, poison: float, packed: bool) -> None:
    """Case 9: loss, gradient and metrics are bit-identical with advantages and logprobs poisoned where masked."""
    clean, poisoned = mixed_batch(), mixed_batch()
    for one in poisoned.rows:
        for position, trained in enumerate(one.loss_mask):
            if not trained:
                one.logprobs[position] = one.advantages[position] = poison
    check_batch(poisoned, VOCAB)
    results = []
    for batch in (clean, poisoned):
        share = policy_loss(policy, collate(batch.rows, packed=packed), denominators(batch.rows), OBJECTIVE)
        metrics = step_metrics(share.sums, share.largest, batch.num_tokens)
        results.append((share.loss.detach(), gradient_of(policy, share), metrics))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[0][1])
    assert results[0][2] == results[1][2]


def test_the_engine_gap_is_measured_only_where_the_trained_weights_sampled(
    policy: PolicyModel, plain: Qwen3ForCausalLM
) -> None:
    """A stale token off by 0.5 is no gap; an on-policy one off by 0.25 is."""
    one = row(6, seed=1, trained=[2, 3, 4])
    exact = trained_logprobs(plain, [one]).tolist()
    one.logprobs[2:5] = [exact[0], exact[1] + 0.5, exact[2] + 0.25]
    one.on_policy = [0, 0, 1, 0, 1, 0]
    share = policy_loss(policy, collate([one], packed=True), Denominators(tokens=3, rows=1), OBJECTIVE)
    metrics = step_metrics(share.sums, share.largest, 3)
    assert metrics["logprob_diff_max"] == pytest.approx(0.5, abs=1e-5)
    assert metrics["engine_gap_max"] == pytest.approx(0.25, abs=1e-5)


def test_a_padded_row_equals_the_row_alone(policy: PolicyModel) -> None:
    """Case 11: completions of 3 and 8 tokens, the short one cut by length with no end token."""
    short, long = row(5, seed=1, trained=[2, 3, 4]), row(10, seed=2, trained=list(range(2, 10)))
    both = collate([short, long], packed=False)
    assert both.input_ids.shape == (2, 10)
    assert len(both.targets_N) == 3 + 8
    together = gradient_of(policy, policy_loss(policy, both, Denominators(tokens=11, rows=1), OBJECTIVE))
    alone: dict[str, torch.Tensor] = {}
    for one in (short, long):
        for name, gradient in gradient_of(
            policy, policy_loss(policy, collate([one], packed=False), Denominators(tokens=11, rows=1), OBJECTIVE)
        ).items():
            alone[name] = alone.get(name, 0) + gradient
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, alone[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("packed", [True, False])
def test_an_end_token_that_is_also_the_pad_id_is_trained(packed: bool) -> None:
    """Case 12: id 0 ends the prompt, ends the completion [7, 8, 0], and fills the padding."""
    ended = TrainRow(
        session_id="s",
        token_ids=[5, 0, 7, 8, 0],
        loss_mask=[0, 0, 1, 1, 1],
        logprobs=[0.0, 0.0, -1.0, -2.0, -3.0],
        advantages=[0.0, 0.0, 1.0, 1.0, 1.0],
    )
    batch = collate([row(9, seed=1, trained=[]), ended], packed=packed)
    assert batch.targets_N.tolist() == [7, 8, 0]
    assert batch.behaviour_N.tolist() == [-1.0, -2.0, -3.0]
    assert batch.input_ids.view(-1)[9:14].tolist() == [5, 0, 7, 8, 0]
    assert batch.predictors_N.tolist() == [10, 11, 12]


def test_a_filler_has_zero_loss_zero_gradient_and_neutral_metrics(policy: PolicyModel) -> None:
    share = policy_loss(policy, collate([], packed=True), Denominators(tokens=10, rows=1), OBJECTIVE)
    gradients = gradient_of(policy, share)
    assert share.loss.item() == 0.0
    assert gradients.keys() == dict(policy.lm.named_parameters()).keys()
    assert all(not gradient.any() for gradient in gradients.values())
    assert share.sums.tolist() == [0.0] * len(SUMMED)


def broken(**changes: object) -> TrainRow:
    one = row(4, seed=1, trained=[2, 3])
    for name, value in changes.items():
        setattr(one, name, value)
    return one


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (broken(logprobs=[0.0, 0.0, -1.0]), "'logprobs': 3"),
        (broken(token_ids=[1, 2, 3, VOCAB]), f"outside 0..{VOCAB - 1}"),
        (broken(loss_mask=[1, 0, 1, 1]), "trains its first token"),
        (broken(loss_mask=[0, 2, 1, 1]), r"loss_mask values \[2\]"),
        (broken(logprobs=[0.0, 0.0, -1.0, float("nan")]), "trains position 3 with logprob nan"),
        (broken(advantages=[0.0, 0.0, float("inf"), 0.0]), "trains position 2 .* advantage inf"),
        (broken(temperature=0.0), "temperature 0.0; it must be above 0"),
        (broken(token_ids=[], loss_mask=[], logprobs=[], advantages=[]), "is empty"),
    ],
)
def test_a_row_that_cannot_be_trained_is_named(bad: TrainRow, message: str) -> None:
    with pytest.raises(TrainerError, match=rf"row 1 \(session s1\) of the batch at version 4 .*{message}"):
        check_batch(Batch(version=4, rows=[row(seed=5), bad]), VOCAB)


def test_a_batch_without_a_trained_token_is_refused() -> None:
    with pytest.raises(TrainerError, match="1 rows and no trained token"):
        check_batch(Batch(version=4, rows=[row(trained=[])]), VOCAB)


def test_no_model_directory_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"no model at .*: config.json is not there"):
        load_policy(tmp_path, logit_chunk=8)


def test_segments_refuse_a_model_with_windows(tmp_path: Path) -> None:
    config = Qwen3Config(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(TrainerError, match='set attention = "sdpa"'):
        load_policy(tmp_path, logit_chunk=8)


@pytest.mark.parametrize("values", [{"sliding_window": 4}, {"sliding_window": 4, "use_sliding_window": True}], ids=str)
def test_segments_refuse_a_window_that_no_layer_list_tells_of(values: dict[str, Any]) -> None:
    """Mistral and Phi-3 window every layer and have no `layer_types`; Qwen3-MoE turns it on by a key."""
    with pytest.raises(TrainerError, match=r"mistral wants \['sliding_attention'\]; set attention = \"sdpa\""):
        attention_name("segments", MistralConfig(**values))


@pytest.mark.parametrize(
    "values", [{"sliding_window": None}, {"sliding_window": 4, "use_sliding_window": False}], ids=str
)
def test_segments_take_a_window_that_is_not_used(values: dict[str, Any]) -> None:
    assert attention_name("segments", MistralConfig(**values)) == SEGMENTS


def test_a_model_is_loaded_without_calling_a_kernel_that_its_device_may_lack(model_dir: Path) -> None:
    """A flash kernel takes GPU tensors only, and a model is loaded on the CPU."""
    AttentionInterface.register("no_cpu_kernel", no_cpu_kernel)
    policy = load_policy(model_dir, attention="no_cpu_kernel", logit_chunk=8)
    with pytest.raises(RuntimeError, match="no kernel for the CPU"):
        forward(policy, collate([row()], packed=False))


def no_cpu_kernel(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no kernel for the CPU")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_reshapes_its_logits_is_refused(tmp_path: Path, dtype: str) -> None:
    """Granite divides its logits by a number."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = GraniteConfig(vocab_size=8, num_key_value_heads=1, logits_scaling=2.0, initializer_range=0.5, **sizes)
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(TrainerError, match="changes its logits after the output head"):
        load_policy(tmp_path, dtype=dtype, logit_chunk=8)


@pytest.mark.parametrize("chunk", [2, 1024])
def test_a_bfloat16_model_has_float32_logits(model_dir: Path, chunk: int) -> None:
    """Oracle: the head in float32 on the same bfloat16 states. Logits rounded to bfloat16 are 1e-3 and more away."""
    policy = load_policy(model_dir, dtype="bfloat16", logit_chunk=chunk)
    one = row(9)
    with torch.no_grad():
        found, _ = forward(policy, collate([one], packed=False))
        ids = torch.tensor([one.token_ids])
        hidden = policy.lm.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        assert hidden.dtype == torch.bfloat16
        logits = hidden.float() @ policy.lm.get_output_embeddings().weight.float().T
    expected = (logits / one.temperature).log_softmax(-1)
    at = [position for position, trained in enumerate(one.loss_mask) if trained]
    expected_N = torch.stack([expected[position - 1, one.token_ids[position]] for position in at])
    torch.testing.assert_close(found, expected_N, rtol=1e-6, atol=1e-6)


def test_chunks_of_a_bfloat16_head_are_summed_before_they_are_rounded() -> None:
    """300 tokens, each a chunk, each with the gradient (1/2, -1/2) of two equal logits: bfloat16 sums stop at 128."""
    head = torch.nn.Linear(1, 2, bias=False, dtype=torch.bfloat16)
    torch.nn.init.zeros_(head.weight)
    hidden, targets = torch.ones(300, 1, dtype=torch.bfloat16), torch.zeros(300, dtype=torch.long)
    logprobs, _ = LogprobHead(head, 1)(hidden, targets, torch.ones(300), False)
    logprobs.sum().backward()
    assert head.weight.grad.flatten().tolist() == [150.0, -150.0]


class TestLogprobCheck:
    def recorded(self, plain: Qwen3ForCausalLM, one: TrainRow, versions: list[VersionSpan]) -> Row:
        known = [0.0, *plain_logprobs(plain, one).tolist()]
        logprobs = [value if on else None for value, on in zip(known, one.loss_mask, strict=True)]
        return Row(token_ids=one.token_ids, loss_mask=one.loss_mask, logprobs=logprobs, versions=versions)

    def test_only_tokens_of_the_version_count(self, plain: Qwen3ForCausalLM, model_dir: Path) -> None:
        first, second = row(9, seed=1, trained=[3, 4, 7, 8]), row(6, seed=2, trained=[4, 5], temperature=0.5)
        rows = [
            self.recorded(plain, first, [VersionSpan(3, 3, 5), VersionSpan(4, 7, 9)]),
            self.recorded(plain, second, [VersionSpan(4, 4, 6)]),
        ]
        rows[0].logprobs[8] -= 0.25  # type: ignore[operator]
        at_3 = max_logprob_diffs(model_dir, rows, [1.0, 0.5], 3, tokens_per_pass=9)
        at_4 = max_logprob_diffs(model_dir, rows, [1.0, 0.5], 4)
        assert at_3 == [pytest.approx(0.0, abs=1e-5), None]
        assert at_4 == [pytest.approx(0.25, abs=1e-5), pytest.approx(0.0, abs=1e-5)]

    def test_a_missing_logprob_is_named(self, plain: Qwen3ForCausalLM, model_dir: Path) -> None:
        one = self.recorded(plain, row(6, seed=2, trained=[4, 5]), [VersionSpan(0, 4, 6)])
        one.logprobs[5] = None
        with pytest.raises(TrainerError, match="row 0 of the logprob check trains position 5 with logprob nan"):
            max_logprob_diffs(model_dir, [one], [1.0], 0)
