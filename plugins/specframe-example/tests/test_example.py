from specframe.testing import check_plugin


def test_the_example_keeps_its_contract():
    check_plugin("specframe-example")
