"""The certificate of losslessness: enumeration of the real code, its audit, its controls.

Called, the package certifies a recipe.
"""

from specframe._exports import make_callable

make_callable(__name__, "specframe.certify.recipe:certify")
