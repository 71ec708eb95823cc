"""The package as a plugin."""

from specframe.testing import check_plugin


def test_the_package_keeps_the_contract_of_plugins():
    check_plugin("specframe-distill")
