"""The embedded policies' files: they fit together, round-trip every string, and render conversations stably."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from agentrl.assets import CODER, DIRECTORIES, EMBEDDED, resolve_model
from agentrl.errors import ConfigError

MAX_BYTES = 4_000_000

CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
NO_ARGUMENTS = {"type": "function", "function": {"name": "now", "description": "The time."}}


TOKENIZERS = {model: AutoTokenizer.from_pretrained(resolve_model(model)) for model in DIRECTORIES}
TOKENIZER = TOKENIZERS[EMBEDDED]


@pytest.fixture(params=DIRECTORIES)
def model(request):
    return request.param


@pytest.fixture
def directory(model):
    return resolve_model(model)


@pytest.fixture
def tokenizer(model):
    return TOKENIZERS[model]


@pytest.fixture
def config(directory):
    return json.loads((directory / "config.json").read_text())


@pytest.fixture
def tensors(directory):
    with safe_open(directory / "model.safetensors", framework="np") as file:
        return {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118


def call(arguments, name="calculate"):
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def render(tokenizer, messages, **options) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


# -- files ------------------------------------------------------------------------------------------------------------


def test_the_directory_stays_small(directory):
    assert sum(file.stat().st_size for file in directory.rglob("*")) < MAX_BYTES


def test_it_loads_and_predicts(directory):
    """As the trainer loads it: a Qwen3 model whose next-token distribution is finite and whose head is tied."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert isinstance(model, Qwen3ForCausalLM)
    assert 500_000 < model.num_parameters() < 1_500_000
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with torch.inference_mode():
        logits = model(input_ids=torch.arange(10)[None]).logits
    assert logits.shape == (1, 10, model.config.vocab_size)
    assert torch.isfinite(logits).all()


def test_config_tokenizer_and_weights_agree_on_the_vocabulary(tokenizer, config, tensors):
    assert config["vocab_size"] == len(tokenizer) == tensors["model.embed_tokens.weight"].get_shape()[0]
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert len(tokenizer) < 1000


def test_embeddings_are_tied_and_stored_once(config, tensors):
    assert config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in tensors


def test_weights_are_float32(config, tensors):
    """bfloat16 is slow on the CPUs that this model is for."""
    assert {tensor.get_dtype() for tensor in tensors.values()} == {"F32"}
    assert config["dtype"] == "float32"


def test_a_turn_ends_a_generation_and_no_sampling_default_is_set(directory, tokenizer, config):
    """A sampling field here would change the sampled distribution behind the gateway's back."""
    generation = json.loads((directory / "generation_config.json").read_text())
    end_of_turn = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert generation["eos_token_id"] == config["eos_token_id"] == tokenizer.eos_token_id == end_of_turn
    assert not {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "do_sample"} & set(generation)


@pytest.mark.parametrize(
    ("model", "skill"), [(EMBEDDED, "calculator"), (CODER, "sql"), (CODER, "python_code")], ids=lambda value: value
)
def test_the_warm_start_solves_about_two_fifths(directory, tokenizer, skill, monkeypatch, request):
    """What training starts from: at most half, with room to learn. 256 held-out tasks at temperature 1, no engine."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    monkeypatch.syspath_prepend(request.config.rootpath / "tools")
    import policy_skills
    from policy_sampling import measure

    state = torch.get_rng_state()
    policy = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    measured = measure(policy, tokenizer, getattr(policy_skills, skill.upper()), "eval", 256, seed=0)
    torch.set_rng_state(state)
    assert 0.28 < measured.solved < 0.50
    assert len(measured.outcomes) >= 4


# -- tokenizer --------------------------------------------------------------------------------------------------------


@given(st.sampled_from(list(DIRECTORIES)), st.text())
def test_every_string_round_trips(model, text):
    assert TOKENIZERS[model].decode(TOKENIZERS[model].encode(text)) == text


def test_every_byte_has_a_token_of_its_own(tokenizer):
    """256 of them, so text that the merges never met is encoded too."""
    assert {*pre_tokenizers.ByteLevel.alphabet()} <= set(tokenizer.get_vocab())


@pytest.mark.parametrize("text", ["👋", "é", "漢"])
def test_characters_outside_ascii_are_several_byte_tokens(tokenizer, text):
    assert len(tokenizer.encode(text)) == len(text.encode())


@pytest.mark.parametrize(("model", "word"), [(EMBEDDED, "calculate"), (CODER, "arguments")])
def test_one_string_has_two_token_sequences(tokenizer, word):
    """The drift that re-tokenising meets: a word spelt letter by letter decodes to the text of its one token."""
    whole = tokenizer.encode(word)
    spelt = [token for letter in word for token in tokenizer.encode(letter)]
    assert (len(whole), len(spelt)) == (1, 9)
    assert tokenizer.decode(whole) == tokenizer.decode(spelt) == word


def test_digits_are_one_token_each(tokenizer):
    assert len(tokenizer.encode("1234567890")) == 10


def test_turn_markers_are_special_and_tool_markers_stay_in_the_text(tokenizer):
    for marker in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        (token,) = tokenizer.encode(marker)
        assert tokenizer.decode([token], skip_special_tokens=True) == ""
    for marker in ("<tool_call>", "</tool_call>"):
        (token,) = tokenizer.encode(marker)
        assert tokenizer.decode([token], skip_special_tokens=True) == marker


def test_a_marker_spelt_in_text_can_be_kept_text(tokenizer):
    """Case 'control tokens spelt by a user': with splitting asked for, no special id comes out."""
    ids = tokenizer.encode("<|im_end|>", split_special_tokens=True)
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids) == "<|im_end|>"


# -- chat template ----------------------------------------------------------------------------------------------------


def test_a_whole_episode_renders_like_this(tokenizer):
    messages = [
        {"role": "user", "content": "What is 123*45?"},
        {"role": "assistant", "content": None, "tool_calls": [call('{"expression":"123*45"}')]},
        {"role": "tool", "content": "5535", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "5535"},
    ]
    assert render(tokenizer, messages, tools=[CALCULATE]) == (
        "<|im_start|>system\ncalculate(expression)<|im_end|>\n"
        "<|im_start|>user\nWhat is 123*45?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name":"calculate","arguments":{"expression":"123*45"}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>tool\n5535<|im_end|>\n"
        "<|im_start|>assistant\n5535<|im_end|>\n"
    )


def test_the_first_prompt_is_short():
    """Three digits and two: 27 tokens, so that a whole episode fits in a hundred."""
    messages = [{"role": "user", "content": "What is 123*45?"}]
    prompt = render(TOKENIZER, messages, tools=[CALCULATE], add_generation_prompt=True)
    assert len(TOKENIZER.encode(prompt)) == 27


def test_both_policies_share_a_chat_template():
    assert TOKENIZERS[CODER].chat_template == TOKENIZER.chat_template


def test_tools_join_a_system_message_that_is_there(tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert render(tokenizer, messages, tools=[CALCULATE, NO_ARGUMENTS]) == (
        "<|im_start|>system\nBe brief.\ncalculate(expression)\nnow()<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    )


def test_without_tools_there_is_no_system_turn(tokenizer):
    assert render(tokenizer, [{"role": "user", "content": "hi"}]) == "<|im_start|>user\nhi<|im_end|>\n"


def test_arguments_render_the_same_as_text_and_as_an_object(tokenizer):
    as_text = [{"role": "assistant", "content": "", "tool_calls": [call('{"expression":"1+1","é":[1,null]}')]}]
    as_object = [{"role": "assistant", "tool_calls": [call({"expression": "1+1", "é": [1, None]})]}]
    assert render(tokenizer, as_text) == render(tokenizer, as_object)


def test_content_and_several_calls_share_a_turn(tokenizer):
    messages = [{"role": "assistant", "content": "Two.", "tool_calls": [call("{}", "a"), call("{}", "b")]}]
    assert render(tokenizer, messages) == (
        '<|im_start|>assistant\nTwo.\n<tool_call>\n{"name":"a","arguments":{}}\n</tool_call>\n'
        '<tool_call>\n{"name":"b","arguments":{}}\n</tool_call><|im_end|>\n'
    )


def test_text_parts_are_joined(tokenizer):
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert render(tokenizer, [{"role": "user", "content": parts}]) == "<|im_start|>user\none two<|im_end|>\n"


CONTENT = st.one_of(st.none(), st.text(max_size=12), st.sampled_from([" padded ", "\n", "</tool_call>", "<|im_end|>"]))
MESSAGES = st.lists(
    st.builds(
        lambda role, content, calls: {"role": role, "content": content} | ({"tool_calls": calls} if calls else {}),
        st.sampled_from(["system", "user", "assistant", "tool"]),
        CONTENT,
        st.lists(st.sampled_from([call("{}"), call({"expression": "1"})]), max_size=2),
    ),
    min_size=1,
    max_size=6,
)


@given(MESSAGES, st.sampled_from([None, [CALCULATE], [CALCULATE, NO_ARGUMENTS]]), st.data())
def test_the_first_messages_render_to_a_prefix(messages, tools, data):
    """Nothing is stripped or moved when more follows, and a generation prompt is what the next answer starts with."""
    count = data.draw(st.integers(min_value=1, max_value=len(messages)))
    whole = render(TOKENIZER, messages, tools=tools)
    assert whole.startswith(render(TOKENIZER, messages[:count], tools=tools))
    if count < len(messages) and messages[count]["role"] == "assistant":
        assert whole.startswith(render(TOKENIZER, messages[:count], tools=tools, add_generation_prompt=True))


# -- names of models --------------------------------------------------------------------------------------------------


def test_a_local_directory_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_path_that_is_no_directory_is_refused_with_the_fix(tmp_path):
    with pytest.raises(ConfigError, match=r"missing' is not a directory; give the path .* or 'agentrl:tiny'"):
        resolve_model(str(tmp_path / "missing"))


def test_a_directory_without_a_model_is_refused_naming_what_it_lacks(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config.json and no tokenizer.json; export"):
        resolve_model(str(tmp_path))
