"""Updates one parameter by half of its gradient."""

from planted.wrapping import Planted, Wrapped


class WrongGradient(Wrapped):
    """The last parameter moves half as far as it should."""

    def run(self, batches):
        before = self.inner.weights()
        timeline = super().run(batches)
        after = dict(self.inner.weights())
        name = list(after)[-1]
        after[name] = (before[name] + after[name]) / 2
        self.spoilt = after
        return timeline

    def weights(self):
        return getattr(self, "spoilt", None) or self.inner.weights()

    def load(self, weights):
        self.spoilt = None
        self.inner.load(weights)


BACKEND = Planted("wrong_gradient", WrongGradient)
