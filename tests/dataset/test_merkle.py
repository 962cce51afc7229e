from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.dataset import samples
from tests.kit.samples import tree_hash


@given(st.lists(st.binary(max_size=9), max_size=70))
def test_the_root_is_the_one_that_the_rfc_defines(leaves: list[bytes]) -> None:
    assert samples.root(iter(leaves)) == tree_hash(leaves).hex()


# The inputs and roots that the tests of Certificate Transparency's own code use.
_LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"]
_ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
}


@pytest.mark.parametrize("num", _ROOTS)
def test_roots_of_certificate_transparency(num: int) -> None:
    assert samples.root(map(bytes.fromhex, _LEAVES[:num])) == _ROOTS[num]
