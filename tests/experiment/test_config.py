from pathlib import Path
from typing import Any

import pytest
from tests.support import write_toml

from fedomg.core.errors import UserError
from fedomg.experiment.config import load_config, make_config, to_toml
from fedomg.server.omg import OMGOptions

EVERYTHING = """
method = "FedOMG"
dataset = "folder"
target = "line"
seed = 3
rounds = 7
[local]
epochs = 2
lr = 1e-5
[aggregator]
kappa = 0.25
[server]
participation = 0.5
[data]
root = "a \\"quoted\\" \\\\ path"
[evaluate]
adapted = 2
global = "last"
"""


def test_reading_and_writing_are_inverse(tmp_path: Path) -> None:
    config = load_config(write_toml(tmp_path / "a.toml", EVERYTHING))
    again = load_config(write_toml(tmp_path / "b.toml", to_toml(config)))
    assert again == config
    assert again.hash() == config.hash()
    assert config.local.lr == 1e-5
    assert config.data.root == 'a "quoted" \\ path'
    assert config.evaluate.global_ == "last"


def test_names_are_made_canonical() -> None:
    assert make_config({"method": "FedOMG"}).method == make_config({"method": "fedavg+omg"}).method == "fedavg+omg"


def test_the_resolved_file_says_everything() -> None:
    text = to_toml(make_config({"method": "fedomg"}))
    for line in ('method = "fedavg+omg"', "kappa = 0.5", "rescale = true", 'buffers = "average"', "batch_size = 16", "[engine]"):
        assert line in text


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"local": {"lrr": 1}}, 'unknown key "local.lrr"; did you mean "local.lr"'),
        ({"rouns": 1}, 'unknown key "rouns"; did you mean "rounds"'),
        ({"kappa": 1}, 'unknown key "kappa"; did you mean "aggregator.kappa"'),
        ({"participation": 1}, 'did you mean "server.participation"'),
        ({"method": "fedavg", "aggregator": {"kappa": 0.5}}, 'belongs to "fedavg\\+omg"'),
        ({"aggregator": {"kappa": -0.1}}, "aggregator.kappa should be greater than or equal to 0"),
        ({"aggregator": {"kappa": float("nan")}}, "aggregator.kappa should be "),
        ({"aggregator": {"preset": "code_d"}}, "did you mean 'code_dg'"),
        ({"method": "fedav"}, 'no method is called "fedav"; did you mean "fedavg"'),
        ({"method": "fedavg+om"}, 'no method is called "fedavg\\+om"; did you mean "fedavg\\+omg"'),
        ({"dataset": "emojis"}, 'no data set is called "emojis"; did you mean "emoji"'),
        ({"dataset": "mine:"}, 'data set "mine:" is no import path: write package.module:name'),
        ({"model": {"name": ":x"}}, 'model ":x" is no import path'),
        ({"dataset": "mnist", "data": {"partition": "dirichlett"}}, "data.partition should be 'domain', 'iid', 'dirichlet'"),
        ({"dataset": "mnist", "data": {"alpha": 0}}, "data.alpha should be greater than 0"),
        ({"dataset": "mnist", "data": {"alpha": float("inf")}}, "data.alpha should be a finite number"),
        ({"dataset": "mnist", "data": {"clients": 0}}, "data.clients should be greater than or equal to 1"),
        ({"dataset": "emoji", "data": {"clients": 5}}, 'data.clients has no effect with data.partition = "domain"'),
        (
            {"dataset": "mnist", "data": {"clients_per_domain": 5}},
            'data.clients_per_domain has no effect with data.partition = "dirichlet"',
        ),
        ({"dataset": "mnist", "data": {"clientss": 5}}, 'unknown key "data.clientss"; did you mean "data.clients"'),
        ({"model": {"name": "cn"}}, 'no model is called "cn"; did you mean "cnn"'),
        ({"rounds": 0}, "rounds should be greater than or equal to 1"),
        ({"rounds": 1.5}, "rounds should be a valid integer"),
        ({"rounds": True}, "rounds should be a valid integer"),
        ({"seed": "1"}, "seed should be a valid integer"),
        ({"local": 3}, r"local is a table of its own: write \[local\]"),
        ({"server": 3}, r"server is a table of its own: write \[server\]"),
        ({"aggregator": "omg"}, r"aggregator is a table of its own: write \[aggregator\]"),
        ({"local": {"optimizer": "adamm"}}, "local.optimizer should be 'sgd' or 'adam'"),
        ({"evaluate": {"adapted": "sometimes"}}, "evaluate.adapted should be .*'last' or 'never'"),
        ({"evaluate": {"adapted": 0}}, "evaluate.adapted should be greater than or equal to 1"),
        ({"server": {"participation": 0}}, "server.participation should be greater than 0"),
        ({"local": {"lr": float("inf")}}, "local.lr should be a finite number"),
    ],
)
def test_mistakes_are_one_line_with_a_way_out(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_config({"method": "fedomg", **table})
    assert "\n" not in str(caught.value)


def test_overrides_reach_into_tables_and_keep_their_type() -> None:
    config = make_config({"rounds": 3}, ["rounds=5", "local.lr=1", "target=line", "evaluate.adapted=last", 'dataset="emoji"'])
    assert (config.rounds, config.local.lr, config.target, config.dataset) == (5, 1.0, "line", "emoji")
    with pytest.raises(UserError, match="rounds should be a valid integer"):
        make_config({}, ["rounds=five"])
    with pytest.raises(UserError, match="target should be a valid string"):
        make_config({}, ["target=5"])


@pytest.mark.parametrize("override", ["rounds", "=3", "local.=3", ""])
def test_an_override_without_key_or_value_is_explained(override: str) -> None:
    with pytest.raises(UserError, match="--set needs KEY=VALUE"):
        make_config({}, [override])


def test_an_override_into_a_value_is_explained() -> None:
    with pytest.raises(UserError, match='"rounds" is a value, not a table'):
        make_config({"rounds": 3}, ["rounds.x=1"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(UserError, match="Is a directory"):
        load_config(tmp_path)
    with pytest.raises(UserError, match=r"not valid TOML.*line 1"):
        load_config(write_toml(tmp_path / "broken.toml", "rounds = = 3"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a text file"):
        load_config(tmp_path / "binary.toml")


def test_a_preset_fills_in_what_is_not_set() -> None:
    config = make_config({"method": "fedomg", "aggregator": {"preset": "code_dg"}})
    assert isinstance(config.aggregator, OMGOptions)
    assert (config.aggregator.kappa, config.aggregator.solver, config.server.lr) == (0.5, "reference", 0.5)


def test_what_is_set_wins_over_the_preset() -> None:
    config = make_config({"method": "fedomg", "aggregator": {"preset": "code_dg", "kappa": 0.1}, "server": {"lr": 0.7}})
    assert isinstance(config.aggregator, OMGOptions)
    assert (config.aggregator.kappa, config.aggregator.solver, config.server.lr) == (0.1, "reference", 0.7)


def test_the_hash_follows_what_is_computed() -> None:
    assert make_config({"seed": 1}).hash() != make_config({"seed": 2}).hash()
    assert make_config({"method": "fedomg"}).hash() == make_config({"method": "fedavg+omg", "aggregator": {"kappa": 0.5}}).hash()


def test_the_resolved_file_says_how_the_data_are_dealt() -> None:
    label, domain = to_toml(make_config({"dataset": "cifar10"})), to_toml(make_config({"dataset": "emoji"}))
    for line in ('partition = "dirichlet"', "clients = 100", "alpha = 0.1", "repair = false", "validation = 0.0", "test = 0.25"):
        assert line in label
    for line in ('partition = "domain"', "clients_per_domain = 1", "validation = 0.1", "test = 0.1"):
        assert line in domain
    assert "clients_per_domain" not in label
    assert "alpha" not in domain


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "pathological", "domain-label", "domain"])
def test_what_is_resolved_reads_back_as_the_same(partition: str, tmp_path: Path) -> None:
    config = make_config({"dataset": "mnist", "data": {"partition": partition}})
    again = load_config(write_toml(tmp_path / "a.toml", to_toml(config)))
    assert again == config
    assert again.hash() == config.hash()


def test_names_of_ones_own_are_kept() -> None:
    config = make_config({"dataset": "pack.mine:data", "model": {"name": "pack.mine:Net.small"}})
    assert (config.dataset, config.model.name) == ("pack.mine:data", "pack.mine:Net.small")
    assert config.method == "fedavg+omg"
    assert config.data.partition is None  # follows from its domains, once it is read
