import pytest

from dispatch.placement.policies.registry import parse_spec
from infra.base.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "meant"),
    [("joint:elstic", "joint:elastic"), ("jiont:elastic", "joint:elastic"), ("esd:0.5:elastc", "esd:0.5:elastic")],
)
def test_a_misspelt_policy_gets_the_one_that_may_be_meant(written: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"to '{meant}'$"):
        parse_spec(written)
