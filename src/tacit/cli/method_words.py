"""A method inside a method is one flag that takes a word, such as ``--method fedprox:mu=0.1``."""

from __future__ import annotations

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from tacit.core import BadInput, Method, TacitError
from tacit.methods.spec import method_from_spec, spec_of

METHOD_WORDS = ConstructorRegistry()


class NotAMethod(TacitError):
    """A word that is no method. Not a ValueError: tyro would put that into words of its own."""

    exit_code = BadInput.exit_code


@METHOD_WORDS.primitive_rule
def _method_as_word(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Method] | None:
    """Return how tyro reads and shows a field whose type is any method."""
    if info.type is not Method:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="METHOD",
        instance_from_str=lambda words: _method(words[0]),
        is_instance=lambda given: isinstance(given, Method),
        str_from_instance=lambda method: [spec_of(method)],
    )


def _method(word: str) -> Method:
    try:
        return method_from_spec(word)
    except BadInput as e:
        raise NotAMethod(str(e)) from None
