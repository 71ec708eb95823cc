"""The table of drafters in engines: every drafter that comes with specframe, and no empty cell."""


def test_every_shipped_drafter_has_a_result_for_every_engine(generators):
    engines = generators("engines")
    results = engines.read_results()
    assert results.keys() == engines.shipped_drafters()
    for name, cells in results.items():
        assert cells.keys() == engines.ENGINES.keys(), name
        assert all(cell.startswith(("arrives ", "refused", "not checked: ")) for cell in cells.values()), name


def test_a_drafter_is_refreshed_by_a_recipe_that_drafts_with_it_alone(generators):
    engines = generators("engines")
    recipes = engines.recipes_of_drafters()
    assert recipes.keys() == engines.shipped_drafters()
    assert recipes["smollm2-135m-fastdraft"].name == "fastdraft.yaml"
