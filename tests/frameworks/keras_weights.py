"""Runs examples/with_keras.py with a metric that sums the labels and weights of its inputs.

The last line is JSON: for the validation of each epoch, the number of images and the sum of their
labels; and the expected values if each image comes once.
"""

import json
import sys
from pathlib import Path

program = sys.argv[1]
METRICS = """
class Sum(keras.metrics.Metric):
    def __init__(self, name, count):
        super().__init__(name=name)
        self.count, self.sum = count, self.add_weight(name="sum", initializer="zeros", shape=())

    def update_state(self, labels, scores, sample_weight):
        labels = keras.ops.reshape(keras.ops.cast(labels, "float32"), (-1,))
        weights = keras.ops.reshape(keras.ops.cast(sample_weight, "float32"), (-1,))
        values = keras.ops.ones_like(labels) if self.count else labels
        self.sum.assign_add(keras.ops.sum(values * weights))

    def result(self):
        return self.sum + 0.0


"""
FIRST = "\ntrain = reader("
EXPECTED = 'weighted_metrics=["accuracy"'
source = Path(program).read_text("utf-8")
assert EXPECTED in source
assert FIRST in source
source = source.replace(FIRST, METRICS + FIRST, 1)
source = source.replace(EXPECTED, f'{EXPECTED}, Sum("images", True), Sum("labels", False)')
sys.argv = sys.argv[1:]
ran = {"__name__": "__main__"}
exec(compile(source, program, "exec"), ran)
history = ran["history"].history
once = [(weights, labels) for _, labels, weights in ran["validation"]]
found = {
    "images": history["val_images"],
    "labels": history["val_labels"],
    "losses": history["val_loss"],
    "once": [
        sum(int(weights.sum()) for weights, _ in once),
        sum(int((labels * weights).sum()) for weights, labels in once),
    ],
}
print(json.dumps(found))
