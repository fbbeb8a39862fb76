"""Right for one update in a call; of several it forgets the last."""

from planted.wrapping import Planted, Wrapped


class LoopForgets(Wrapped):
    """The last batch gives its loss, but moves no weight."""

    def run(self, batches):
        if batches == 1:
            return super().run(1)
        super().run(batches - 1)
        rate, self.learning_rate = self.learning_rate, 0.0
        timeline = super().run(1)
        self.learning_rate = rate
        return timeline


BACKEND = Planted("loop_forgets", LoopForgets)
