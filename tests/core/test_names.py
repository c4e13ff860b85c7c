"""What a user hears who writes a name in another way."""

import pytest

from fedomg.core.names import unknown_name
from fedomg.data.catalogue import SOURCES


@pytest.mark.parametrize(
    ("written", "meant"),
    [("MNIST", "mnist"), ("CIFAR-10", "cifar10"), ("CIFAR100", "cifar100"), ("FashionMNIST", "fashion-mnist"), ("emojis", "emoji")],
)
def test_the_nearest_name_capitals_aside(written: str, meant: str) -> None:
    assert unknown_name("data set", written, SOURCES) == f'no data set is called "{written}"; did you mean "{meant}"?'


def test_known_names_keep_their_capitals() -> None:
    assert unknown_name("domain", "art", ["Art", "Clipart"]).endswith('did you mean "Art"?')


def test_all_names_where_none_is_near() -> None:
    assert unknown_name("domain", "xyz", ["photo", "art"]) == 'no domain is called "xyz"; known are: art, photo'
