"""Right but for one element in a thousand."""

from planted.wrapping import Planted, Wrapped


class WrongOutput(Wrapped):
    """Some elements of the output are one tenth too large."""

    def outputs(self):
        found = {name: value.copy() for name, value in self.inner.outputs().items()}
        for value in found.values():
            value.reshape(-1)[::1000] *= 1.1
        return found


BACKEND = Planted("wrong_output", WrongOutput)
