"""A student: learns from the labels that a teacher released, on points that are public. It may be used without end."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def student_accuracy(x: Tensor, released: Tensor, query_x: Tensor, query_y: Tensor) -> float:
    """The accuracy on queries of a logistic regression on the points and their released labels.

    If only one label was released, the student always answers it.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    answers = released.numpy()
    if len(np.unique(answers)) == 1:
        return float((query_y == int(answers[0])).double().mean())
    student = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    student.fit(x.flatten(1).numpy(), answers)
    return float((student.predict(query_x.flatten(1).numpy()) == query_y.numpy()).mean())
