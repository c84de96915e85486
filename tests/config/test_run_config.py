"""A wrong configuration fails before anything starts, naming the key, the value and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import load_run_config
from agentrl.errors import ConfigError
from agentrl.kinds import load_config

MINIMAL = """
name = "test"
[environment]
id = "agentrl/Calculator-v0"
"""


@pytest.fixture
def run_file(tmp_path: Path):
    def write(text: str = MINIMAL) -> Path:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


def test_a_run_needs_a_name_and_an_environment_and_has_defaults_for_the_rest(run_file):
    config = load_run_config(run_file())
    assert (config.model, config.staleness.max_lag, config.engine.swap_mode) == ("agentrl:tiny", 1, "recompute")
    with pytest.raises(ConfigError, match=r"name: is required\n.*environment: is required"):
        load_run_config(run_file(""))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group_sise = 8", "rollout.group_sise: unknown key; did you mean 'group_size'?"),
        ("group_size = 0", "rollout.group_size = 0: .*greater than or equal to 1"),
        ("max_tokens = -1", "rollout.max_tokens = -1: .*greater than or equal to 1"),  # case 47, here and below
        ("max_tokens = 0", "rollout.max_tokens = 0: .*greater than or equal to 1"),
        ("max_episode_tokens = -1", "rollout.max_episode_tokens = -1: .*greater than or equal to 1"),
        ("max_episode_tokens = 0", "rollout.max_episode_tokens = 0: .*greater than or equal to 1"),
        ('temperature = "hot"', "rollout.temperature = 'hot': .*number"),
        ("temperature = inf", "rollout.temperature = inf: .*finite"),
        ("temperature = 101", "rollout.temperature = 101: .*less than or equal to 100"),  # what the gateway takes
        ("eval_temperature = 101", "rollout.eval_temperature = 101: .*less than or equal to 100"),
        ("deadline_s = inf", "rollout.deadline_s = inf: .*finite"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_was_perhaps_meant(run_file, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_run_config(run_file(f"{MINIMAL}[rollout]\n{text}\n"))


def test_an_unknown_table_is_named(run_file):
    with pytest.raises(ConfigError, match="rollouts: unknown key; did you mean 'rollout'"):
        load_run_config(run_file(f"{MINIMAL}[rollouts]\ngroup_size = 8\n"))


def test_the_trainers_table_is_checked_by_its_owner(run_file):
    with pytest.raises(ConfigError, match=r"trainer.learning_rat: unknown key; did you mean 'learning_rate'"):
        load_run_config(run_file(f"{MINIMAL}[trainer]\nlearning_rat = 1\n"))
    with pytest.raises(ConfigError, match=r"no agentrl.trainer_configs is called 'deepsped'; known: deepspeed"):
        load_run_config(run_file(f'trainer_kind = "deepsped"\n{MINIMAL}'))


def test_every_problem_is_named_at_once(run_file):
    with pytest.raises(ConfigError) as caught:
        load_run_config(run_file(f"{MINIMAL}[loop]\nsteps = 0\ngroups_per_stepp = 1\n"))
    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_file_and_a_file_that_is_no_toml(run_file, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no configuration file .*nothing.toml"):
        load_run_config(tmp_path / "nothing.toml")
    with pytest.raises(ConfigError, match="is not a TOML file"):
        load_run_config(run_file("name ="))


def test_overrides_are_read_as_toml_and_as_text_where_they_are_none(run_file):
    config = load_run_config(
        run_file(), ["trainer.learning_rate=1e-5", "engine.swap_mode=drain", "name=other", "loop.steps=3"]
    )
    assert (config.trainer.learning_rate, config.engine.swap_mode) == (1e-5, "drain")
    assert (config.name, config.loop.steps) == ("other", 3)


@pytest.mark.parametrize("override", ["loop.steps", "=3", "name.x=3"])
def test_an_override_that_cannot_be_applied_is_named(run_file, override: str):
    with pytest.raises(ConfigError, match=f"--set '{override}'"):
        load_run_config(run_file(), [override])


def test_the_runs_seed_reaches_the_trainer_unless_it_has_its_own(run_file):
    assert load_run_config(run_file(), ["seed=7"]).trainer.seed == 7
    assert load_run_config(run_file(), ["seed=7", "trainer.seed=3"]).trainer.seed == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluation.success_reward=nan", "evaluation.success_reward = nan: .*finite"),
        ("evaluation.success_reward=inf", "evaluation.success_reward = inf: .*finite"),
        ("loop.group_timeout_s=inf", "loop.group_timeout_s = inf: .*finite"),
        ("seed=9223372036854775808", " seed = 9223372036854775808: .*less than 9223372036854775808"),
        ("seed=-1", " seed = -1: .*greater than or equal to 0"),
        ("seed=1.5", " seed = 1.5: .*integer"),
        ("trainer_kind=5", "trainer_kind = 5: .*string"),
        ("trainer_kind=os:path", "agentrl.trainer_configs 'os:path' is a module; name a class or a function"),
        ("trainer_kind=json:dumps", "trainer_kind = 'json:dumps' names <function dumps .* not a pydantic model"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused_by_its_own_name(run_file, override: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_run_config(run_file(), [override])


def test_a_runs_gateway_is_one_process(run_file):
    with pytest.raises(ConfigError, match=r"gateway = .*: workers is 2, and a run's gateway is one process"):
        load_run_config(run_file(f"{MINIMAL}[gateway]\nworkers = 2\n"))


def test_the_largest_seed_is_one_that_torch_takes(run_file):
    assert load_run_config(run_file(), ["seed=9223372036854775807"]).trainer.seed == 2**63 - 1


def test_a_password_in_the_store_url_is_refused(run_file):
    with pytest.raises(ConfigError, match=r"store_url .*holds a password") as caught:
        load_run_config(run_file(), ['store_url="postgresql://me:s3cret@db/runs"'])
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://db/runs?user=me&password=s3cret", "postgresql://me:s3cret@db/runs?sslmode=require"]
)
def test_no_spelling_of_a_password_gets_through(run_file, url: str):
    with pytest.raises(ConfigError) as caught:
        load_run_config(run_file(), [f'store_url="{url}"'])
    assert "s3cret" not in str(caught.value)


def test_a_password_in_a_reward_services_url_is_refused(run_file):
    service = '[[reward.services]]\nname = "judge"\nurl = "http://me:s3cret@judge/"\n'
    with pytest.raises(ConfigError, match=r"reward.services.0.url") as caught:
        load_run_config(run_file(MINIMAL + service))
    assert "s3cret" not in str(caught.value)


def test_off_says_no_value_where_there_may_be_none(run_file):
    off = load_run_config(
        run_file(), ["rollout.max_tokens=off", "engine.kv_cache_gib=off", "trainer.gradient_clip=off"]
    )
    assert (off.rollout.max_tokens, off.engine.kv_cache_gib, off.trainer.gradient_clip) == (None, None, None)
    with pytest.raises(ConfigError, match=r"loop.steps = 'off'"):
        load_run_config(run_file(), ["loop.steps=off"])


def test_a_directory_is_not_a_configuration_file(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        load_run_config(tmp_path)


def test_train_and_held_out_tasks_may_not_be_of_one_split(run_file):
    with pytest.raises(ConfigError, match="held-out tasks need a split of their own"):
        load_run_config(run_file(), ["environment.eval_split=train"])


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden"])
def test_a_run_name_is_one_plain_directory_name(run_file, name: str):
    with pytest.raises(ConfigError, match="name = "):
        load_run_config(run_file(), [f'name="{name}"'])


@pytest.mark.parametrize(
    "file", sorted(Path(__file__).parents[2].glob("examples/*/*.toml")), ids=lambda p: p.parent.name
)
def test_every_shipped_configuration_is_valid(file: Path):
    assert load_config(file).name
