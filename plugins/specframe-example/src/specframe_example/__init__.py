from specframe.plugin import hookimpl


@hookimpl
def specframe_register(register):
    register("drafter", "example", "specframe_example.drafter:Example", summary="what followed before, follows again")
