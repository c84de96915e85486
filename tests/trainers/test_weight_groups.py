"""Weight groups hold every tensor once, in whole layers, and none is silly small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl_trainers.weight_groups import changing, weight_groups

SIZES = {
    "model.embed_tokens.weight": 100,
    "model.layers.0.mlp.weight": 40,
    "model.layers.0.norm.weight": 2,
    "model.layers.1.mlp.weight": 40,
    "model.layers.1.norm.weight": 2,
    "model.norm.weight": 2,
    "lm_head.weight": 100,
}


def test_without_a_minimum_a_group_is_a_layer_or_a_module() -> None:
    assert [group.num_bytes for group in weight_groups(SIZES, min_bytes=1)] == [100, 42, 42, 2, 100]


def test_layers_are_joined_up_to_the_minimum() -> None:
    # 100; 42 + 42 + 2 is still below 90, so the head joins it.
    assert [group.num_bytes for group in weight_groups(SIZES, min_bytes=90)] == [100, 186]


def test_a_small_rest_joins_the_last_group() -> None:
    # 100; 42 + 42 = 84; the norm's 2 alone are below 50.
    sizes = {name: size for name, size in SIZES.items() if name != "lm_head.weight"}
    assert [group.num_bytes for group in weight_groups(sizes, min_bytes=50)] == [100, 86]


@given(st.dictionaries(st.sampled_from(sorted(SIZES)), st.integers(1, 1000)), st.integers(1, 5000))
def test_every_tensor_is_in_one_group_in_order(sizes: dict[str, int], min_bytes: int) -> None:
    groups = weight_groups(sizes, min_bytes=min_bytes)
    assert [name for group in groups for name in group.names] == list(sizes)
    assert len(groups) <= 1 or all(group.num_bytes >= min_bytes for group in groups)


def test_all_of_a_part_that_changes_travels_for_an_engine_may_hold_it_as_one_matrix() -> None:
    """Query, key and value are one matrix in vLLM; norms and embeddings are nobody's part but their own."""
    trained = {
        "model.embed_tokens.weight": False,
        "model.layers.0.self_attn.q_proj.weight": True,
        "model.layers.0.self_attn.k_proj.weight": False,
        "model.layers.0.mlp.up_proj.weight": False,
        "model.layers.0.input_layernorm.weight": False,
        "model.layers.1.self_attn.k_proj.weight": False,
        "model.norm.weight": False,
    }
    assert changing(trained) == {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"}
    assert changing(dict.fromkeys(trained, True)) == set(trained)
    assert changing(dict.fromkeys(trained, False)) == set()
